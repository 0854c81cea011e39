// What a host tells of its data.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "generator/expr/evaluator.hpp"
#include "generator/plan/mask_data.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/capi/arguments.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/sizes.hpp"

namespace attune {
namespace {

// More elements are not read to choose a plan: tiles are then told by what is drawn.
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;

float half_to_float(std::uint16_t bits) {
  _Float16 value{};
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}
float bfloat_to_float(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

double element(expr::TensorType type, const void* data, std::size_t i) {
  switch (type) {
    case expr::TensorType::kInt32:
      return static_cast<const std::int32_t*>(data)[i];
    case expr::TensorType::kFloat32:
      return static_cast<double>(static_cast<const float*>(data)[i]);
    case expr::TensorType::kBool:
      return static_cast<const std::uint8_t*>(data)[i] != 0 ? 1 : 0;
    case expr::TensorType::kFloat16:
      return static_cast<double>(half_to_float(static_cast<const std::uint16_t*>(data)[i]));
    case expr::TensorType::kBFloat16:
      return static_cast<double>(bfloat_to_float(static_cast<const std::uint16_t*>(data)[i]));
  }
  return 0;
}

// Fails where the view is not what the spec declares at `shape`.
Result<Sample> given_sample(const expr::TensorDecl& declared, const ProblemShape& shape,
                            const att_tensor& view) {
  expr::TensorValues values;
  std::int64_t count = 1;
  for (const expr::DimSize& dim : declared.dims) {
    values.sizes.push_back(dim_size(dim, shape));
    count = std::min(count * values.sizes.back(), kMostElements + 1);
  }
  ATT_CHECK(check_view(declared, values.sizes.data(), view));
  if (view.data == nullptr) return bad_argument(fmt::format("`{}` is null", declared.name));
  if (count > kMostElements) return Sample{};
  values.values.reserve(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    values.values.push_back(element(declared.type, view.data, i));
  return Sample{.kind = SampleKind::kGiven,
                .given = std::make_shared<const expr::TensorValues>(std::move(values))};
}

}  // namespace
}  // namespace attune

using namespace attune;

extern "C" att_status att_runtime_tell_tensors(att_runtime* runtime, att_kernel* kernel,
                                               const att_shape* shape, const att_tensor* tensors,
                                               int tensor_count) {
  return guarded([&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    if (kernel == nullptr) return null_argument("kernel");
    if (shape == nullptr) return null_argument("shape");
    KernelEntry& entry = *from_handle(kernel);
    AttentionSpec spec = entry.spec();
    const auto& declared = spec.environment.tensors;
    if (tensors == nullptr && !declared.empty()) return null_argument("tensors");
    if (tensor_count != static_cast<int>(declared.size())) {
      return bad_argument(fmt::format("tensor_count is {}, and the spec has {} tensors",
                                      tensor_count, declared.size()));
    }
    ATT_TRY(const LaunchSizes sizes, checked_sizes(spec, *shape));
    spec.samples.assign(declared.size(), {});
    for (std::size_t slot = 0; slot < declared.size(); ++slot) {
      ATT_TRY(spec.samples[slot], given_sample(declared[slot], sizes.shape, tensors[slot]));
    }
    return runtime->dispatcher.tell_data(entry, mask_data(spec, sizes.shape));
  });
}
