#include "runtime/reference/cache_scales.hpp"

#include <algorithm>
#include <cmath>

#include "generator/spec/shape.hpp"
#include "runtime/reference/element_bits.hpp"

namespace attune {
namespace {

constexpr double kLargest = 448;  // of e4m3

// f(slice, head, elements) of each head of each slice of `values`.
template <typename Values, typename F>
void for_each_head(Values values, std::int64_t slices, std::int64_t heads, const F& f) {
  const std::size_t count = values.size() / static_cast<std::size_t>(slices * heads);
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto first = static_cast<std::size_t>(slice * heads + head) * count;
      f(slice, head, values.subspan(first, count));
    }
  }
}

double largest_of(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::fmax(largest, std::abs(value));
  return largest;
}

// All NaN, or zero: 1.
double scale_for(double largest) {
  return round_to(DType::kF32, largest > 0 ? largest / kLargest : 1);
}

// Scales for what has one, at which its largest element is the largest there is.
HostScales fitting_scales(std::span<const double> values, std::int64_t slices, std::int64_t heads,
                          ScaleKind kind) {
  HostScales scales;
  if (kind == ScaleKind::kNone) return scales;
  scales.head_stride = kind == ScaleKind::kPerTensor ? 0 : 1;
  scales.slice_stride = kind == ScaleKind::kPerPage ? heads : 0;
  std::vector<double> largest(static_cast<std::size_t>((slices - 1) * scales.slice_stride +
                                                       (heads - 1) * scales.head_stride + 1));
  for_each_head(values, slices, heads,
                [&](std::int64_t slice, std::int64_t head, std::span<const double> own) {
                  double& most = largest[static_cast<std::size_t>(slice * scales.slice_stride +
                                                                  head * scales.head_stride)];
                  most = std::max(most, largest_of(own));
                });
  for (const double most : largest) scales.values.push_back(scale_for(most));
  return scales;
}

double quantised(double value, double scale) {
  if (std::isnan(value)) return value;
  // The product is exact: 4 and 24 bits.
  return round_to(DType::kFp8E4m3, std::clamp(value / scale, -kLargest, kLargest)) * scale;
}

void quantise(std::vector<double>& values, std::int64_t slices, std::int64_t heads,
              const HostScales& scales) {
  for_each_head(std::span(values), slices, heads,
                [&](std::int64_t slice, std::int64_t head, std::span<double> own) {
                  for (double& value : own) value = quantised(value, scales.of(slice, head));
                });
}

}  // namespace

std::int64_t cache_slices(const AttentionSpec& spec, const HostProblem& problem) {
  return problem.pages.empty() ? slice_count(spec, problem.shape) : problem.pages.count;
}

void quantise_cache(const AttentionSpec& spec, HostProblem& problem, ScaleKind kind,
                    std::mt19937_64& random) {
  const std::int64_t slices = cache_slices(spec, problem), heads = problem.shape.kv_heads;
  std::uniform_real_distribution<double> slack(0.8, 1.6);
  const auto draw = [&](std::vector<double>& values, HostScales& scales) {
    scales = fitting_scales(values, slices, heads, kind);
    for (double& scale : scales.values) scale = round_to(DType::kF32, scale * slack(random));
    quantise(values, slices, heads, scales);
  };
  draw(problem.k, problem.k_scales);
  draw(problem.v, problem.v_scales);
}

void choose_scales(const AttentionSpec& spec, HostProblem& problem, ScaleKind kind) {
  const std::int64_t slices = cache_slices(spec, problem), heads = problem.shape.kv_heads;
  problem.k_scales = fitting_scales(problem.k, slices, heads, kind);
  problem.v_scales = fitting_scales(problem.v, slices, heads, kind);
  quantise(problem.k, slices, heads, problem.k_scales);
  quantise(problem.v, slices, heads, problem.v_scales);
}

std::vector<double> stored_elements(std::span<const double> values, const HostScales& scales,
                                    std::int64_t slices, std::int64_t heads) {
  std::vector<double> elements(values.begin(), values.end());
  if (scales.values.empty()) return elements;
  for_each_head(std::span(elements), slices, heads,
                [&](std::int64_t slice, std::int64_t head, std::span<double> own) {
                  for (double& value : own) value /= scales.of(slice, head);
                });
  return elements;
}

std::vector<std::byte> scale_bytes(const HostScales& scales) {
  return encode(DType::kF32, scales.values);
}

}  // namespace attune
