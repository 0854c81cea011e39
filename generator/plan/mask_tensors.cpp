#include "generator/plan/mask_tensors.hpp"

#include <algorithm>

#include "generator/spec/draw_tensor.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

// Of all tensors: drawing more would take longer than a launch.
constexpr std::int64_t kMostElements = std::int64_t{1} << 20;

// The mean of so many batch entries: one may be far from it.
constexpr std::int64_t kMostBatches = 8;

// What is drawn is the same whenever a plan is chosen.
constexpr std::uint64_t kSeed = 1;

}  // namespace

std::vector<Sample> samples_of(const AttentionSpec& spec) {
  std::vector<Sample> samples = spec.samples;
  samples.resize(spec.environment.tensors.size());
  return samples;
}

std::optional<std::vector<double>> constant_scalars(const AttentionSpec& spec) {
  std::vector<double> values;
  for (const expr::ScalarDecl& scalar : spec.environment.scalars) {
    if (!scalar.is_constant) return std::nullopt;
    values.push_back(scalar.value);
  }
  return values;
}

std::shared_ptr<const MaskTensors> MaskTensors::draw(const expr::Expr& mask,
                                                     std::span<const expr::TensorDecl> declared,
                                                     std::span<const Sample> samples,
                                                     const ProblemShape& shape) {
  ProblemShape one_head = shape;
  one_head.heads = one_head.kv_heads = 1;
  one_head.batch = std::min(shape.batch, kMostBatches);
  std::int64_t elements = 0;
  for (const expr::TensorDecl& tensor : declared) {
    std::int64_t count = 1;
    for (const expr::DimSize& dim : tensor.dims)
      count = std::min(count * dim_size(dim, one_head), kMostElements + 1);
    elements += count;
  }
  if (elements > kMostElements) return nullptr;
  return std::shared_ptr<const MaskTensors>(new MaskTensors(mask, declared, samples, one_head));
}

MaskTensors::MaskTensors(const expr::Expr& mask, std::span<const expr::TensorDecl> declared,
                         std::span<const Sample> samples, const ProblemShape& one_head)
    : batch_(static_cast<std::int32_t>(one_head.batch)) {
  std::mt19937_64 random(kSeed);
  for (std::size_t slot = 0; slot < declared.size(); ++slot)
    values_.push_back(draw_tensor(declared[slot], samples[slot], one_head, random));
  ranges_ = expr::ranges_of(mask, declared, values_);
}

}  // namespace attune
