#include "generator/plan/mask_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "generator/expr/lowering.hpp"
#include "generator/spec/draw_tensor.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

// Of all tensors: drawing more would take longer than a launch.
constexpr std::int64_t kMostElements = std::int64_t{1} << 20;

// Batch entries and heads: one may be far from the mean of all, and the longest decides when a
// launch is done.
constexpr std::int64_t kMostEntries = 64;
// Of tensors with more elements than these, fewer.
constexpr std::int64_t kManyElements = std::int64_t{1} << 17;
constexpr std::int64_t kFewEntries = 8;

// What is drawn is the same whenever a plan is chosen.
constexpr std::uint64_t kSeed = 1;

bool reads_head(const expr::Expr& mask) {
  return expr::depends_on(mask, expr::Variable::kHead) ||
         expr::depends_on(mask, expr::Variable::kKvHead);
}

std::int64_t element_count(std::span<const expr::TensorDecl> declared, const ProblemShape& shape) {
  std::int64_t elements = 0;
  for (const expr::TensorDecl& tensor : declared) {
    std::int64_t count = 1;
    for (const expr::DimSize& dim : tensor.dims)
      count = std::min(count * dim_size(dim, shape), kMostElements + 1);
    elements += count;
  }
  return elements;
}

// Of `shape`, what is drawn: with few heads, then few batch entries, where all are too many.
ProblemShape drawn_shape(const expr::Expr& mask, std::span<const expr::TensorDecl> declared,
                         const ProblemShape& shape) {
  ProblemShape drawn = shape;
  if (!reads_head(mask)) drawn.heads = drawn.kv_heads = 1;
  const auto shrink = [&](std::int64_t entries) {
    drawn.batch = std::min(drawn.batch, entries);
    const std::int64_t group = drawn.heads / drawn.kv_heads;
    drawn.kv_heads = std::clamp<std::int64_t>(entries / group, 1, drawn.kv_heads);
    drawn.heads = group * drawn.kv_heads;
  };
  shrink(kMostEntries);
  if (element_count(declared, drawn) > kManyElements) shrink(kFewEntries);
  if (element_count(declared, drawn) > kMostElements) drawn.heads = drawn.kv_heads = 1;
  return drawn;
}

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
  const ProblemShape drawn = drawn_shape(mask, declared, shape);
  if (element_count(declared, drawn) > kMostElements) return nullptr;
  return std::shared_ptr<const MaskTensors>(new MaskTensors(mask, declared, samples, drawn));
}

// Multiples of the golden section: so few heads as there are of many entries are different ones.
std::vector<MaskEntry> MaskTensors::entries(std::size_t most) const {
  const auto all = static_cast<std::size_t>(drawn_.batch * drawn_.heads);
  const std::int64_t group = drawn_.heads / drawn_.kv_heads;
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < std::min(all, most); ++i) {
    const double turns = static_cast<double>(i + 1) / std::numbers::phi;
    const double place = (turns - std::floor(turns)) * static_cast<double>(all);
    places.push_back(static_cast<std::int64_t>(all <= most ? static_cast<double>(i) : place));
  }
  std::ranges::sort(places);
  std::vector<MaskEntry> entries;
  for (const std::int64_t at : places) {
    const std::int64_t head = at % drawn_.heads;
    entries.push_back({static_cast<std::int32_t>(at / drawn_.heads),
                       static_cast<std::int32_t>(head), static_cast<std::int32_t>(head / group)});
  }
  return entries;
}

MaskTensors::MaskTensors(const expr::Expr& mask, std::span<const expr::TensorDecl> declared,
                         std::span<const Sample> samples, const ProblemShape& drawn)
    : drawn_(drawn) {
  std::mt19937_64 random(kSeed);
  for (std::size_t slot = 0; slot < declared.size(); ++slot)
    values_.push_back(draw_tensor(declared[slot], samples[slot], drawn_, random));
  ranges_ = expr::ranges_of(mask, declared, values_);
}

}  // namespace attune
