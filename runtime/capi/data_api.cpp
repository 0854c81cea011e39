// What a host tells of its data.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "generator/expr/evaluator.hpp"
#include "generator/plan/mask_data.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/capi/arguments.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

// More elements are not read to choose a plan: tiles are then told by what is drawn.
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;
constexpr std::int64_t kMostPageSize = std::numeric_limits<std::int32_t>::max();

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
  const auto bytes = static_cast<std::size_t>(count * tensor_element_bytes(declared.type));
  values.values = decode(declared.type, {static_cast<const std::byte*>(view.data), bytes});
  return Sample{.kind = SampleKind::kGiven,
                .given = std::make_shared<const expr::TensorValues>(std::move(values))};
}

// A kernel of another runtime may be of another device.
Result<KernelEntry*> kernel_of(const att_runtime* runtime, att_kernel* kernel) {
  if (runtime == nullptr) return null_argument("runtime");
  if (kernel == nullptr) return null_argument("kernel");
  KernelEntry* const entry = from_handle(kernel);
  if (&entry->device() == &runtime->dispatcher.workshop().device()) return entry;
  return bad_argument("`kernel` is of another runtime", "tell the one that it was got from");
}

}  // namespace
}  // namespace attune

using namespace attune;

extern "C" att_status att_runtime_tell_shares(att_runtime* runtime, att_kernel* kernel,
                                              double live_share, double full_share) {
  return guarded([&]() -> Status {
    ATT_TRY(KernelEntry * entry, kernel_of(runtime, kernel));
    if (!(full_share >= 0 && full_share <= live_share && live_share <= 1)) {
      return bad_argument(
          fmt::format("shares of {} live and {} full tiles", live_share, full_share),
          "0 <= full_share <= live_share <= 1");
    }
    return runtime->dispatcher.tell_tiles(*entry, {.live = live_share, .full = full_share});
  });
}

extern "C" att_status att_runtime_tell_tensors(att_runtime* runtime, att_kernel* kernel,
                                               const att_shape* shape, const att_tensor* tensors,
                                               int tensor_count) {
  return guarded([&]() -> Status {
    ATT_TRY(KernelEntry * entry, kernel_of(runtime, kernel));
    if (shape == nullptr) return null_argument("shape");
    AttentionSpec spec = entry->spec();
    const auto& declared = spec.environment.tensors;
    if (tensor_count != static_cast<int>(declared.size())) {
      return bad_argument(fmt::format("tensor_count is {}, and the spec has {} tensors",
                                      tensor_count, declared.size()));
    }
    LaunchSizes sizes;
    ATT_CHECK(check_sizes(spec, *shape, &sizes));
    if (sizes.is_empty) return ok_status();
    if (tensors == nullptr && !declared.empty()) return null_argument("tensors");
    spec.samples.assign(declared.size(), {});
    for (std::size_t slot = 0; slot < declared.size(); ++slot) {
      ATT_TRY(spec.samples[slot], given_sample(declared[slot], sizes.shape, tensors[slot]));
    }
    return runtime->dispatcher.tell_tiles(*entry, tensor_data(spec, sizes.shape));
  });
}

extern "C" att_status att_runtime_tell_lengths(att_runtime* runtime, att_kernel* kernel,
                                               const att_shape* shape, const int32_t* kv_lengths,
                                               int64_t page_size) {
  return guarded([&]() -> Status {
    ATT_TRY(KernelEntry * entry, kernel_of(runtime, kernel));
    if (shape == nullptr) return null_argument("shape");
    if (kv_lengths == nullptr) return null_argument("kv_lengths");
    const AttentionSpec& spec = entry->spec();
    if (!is_packed(spec)) {
      return bad_argument(fmt::format("sequences of layout `{}` have no lengths of their own",
                                      to_string(spec.layout)));
    }
    if (is_paged(spec) ? page_size < 1 || page_size > kMostPageSize : page_size != 0) {
      return bad_argument(fmt::format("page_size is {}", page_size),
                          is_paged(spec) ? "rows of a page" : "0: the layout has no pages");
    }
    LaunchSizes sizes;
    ATT_CHECK(check_sizes(spec, *shape, &sizes));
    if (sizes.is_empty) return ok_status();
    const std::span<const std::int32_t> lengths(kv_lengths,
                                                static_cast<std::size_t>(sizes.shape.batch));
    std::int64_t all = 0;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      if (lengths[b] < 0 || lengths[b] > sizes.shape.kv_len)
        return bad_argument(
            fmt::format("kv_lengths[{}] is {}, and kv_len {}", b, lengths[b], sizes.shape.kv_len));
      all += lengths[b];
    }
    if (!is_paged(spec) && all > sizes.shape.kv_len) {
      return bad_argument(
          fmt::format("kv_lengths come to {}, and kv_len is {}", all, sizes.shape.kv_len),
          "kv_len is the keys of all sequences together");
    }
    return runtime->dispatcher.tell_lengths(
        *entry, length_class(lengths, key_rows(spec, sizes.shape), static_cast<int>(page_size)));
  });
}
