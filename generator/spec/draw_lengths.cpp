#include "generator/spec/draw_lengths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace attune {
namespace {

// Of n sequences, the lengths beside a longest of 1; ascending.
std::vector<double> weights_of(const Lengths& lengths, std::int64_t n) {
  std::vector<double> weights(static_cast<std::size_t>(n), 1);
  const auto [first, second] = lengths.arguments;
  if (lengths.kind == LengthsKind::kUniform) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = n == 1 ? second : first + (second - first) * double(i) / double(n - 1);
  } else if (lengths.kind == LengthsKind::kSkewed && n > 1) {
    const double other = (1 - first) / double(n - 1) / std::max(first, 1e-9);
    std::fill(weights.begin(), weights.end() - 1, std::min(other, 1.0));
  } else if (lengths.kind == LengthsKind::kGiven && !lengths.given.empty()) {
    std::vector<std::int32_t> sorted = lengths.given;
    std::ranges::sort(sorted);
    const double longest = std::max(sorted.back(), 1);
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = sorted[(2 * i + 1) * sorted.size() / (2 * weights.size())] / longest;
  }
  return weights;
}

std::int64_t sum_of(const std::vector<std::int32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

// Whether the very lengths that are given can be those of the shape.
bool fits(const AttentionSpec& spec, const ProblemShape& shape) {
  const std::vector<std::int32_t>& given = spec.lengths.given;
  if (std::ssize(given) != shape.batch) return false;
  return (is_paged(spec) ? std::int64_t{std::ranges::max(given)} : sum_of(given)) <= shape.kv_len;
}

Error bad_shape(std::string message, std::string hint = {}) {
  return {.kind = ErrorKind::kBadInput,
          .id = "lengths-shape",
          .message = std::move(message),
          .hint = std::move(hint)};
}

Status check_given(const AttentionSpec& spec, const ProblemShape& shape) {
  const std::vector<std::int32_t>& given = spec.lengths.given;
  if (std::ssize(given) != shape.batch) {
    return bad_shape(
        fmt::format("{} lengths are given, and the shape has batch={}", given.size(), shape.batch),
        "one for each sequence");
  }
  if (fits(spec, shape)) return ok_status();
  return is_paged(spec)
             ? bad_shape(fmt::format("a length is {}, and the shape has kv_len={}",
                                     std::ranges::max(given), shape.kv_len),
                         "with pages kv_len is the most keys that one sequence may have")
             : bad_shape(fmt::format("the lengths sum to {}, and the shape has kv_len={}",
                                     sum_of(given), shape.kv_len),
                         "with layout thd kv_len is the tokens of all sequences together");
}

}  // namespace

std::vector<std::int32_t> offsets_in_proportion(std::span<const double> weights,
                                                std::int64_t total) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int32_t> offsets = {0};
  double sum = 0;
  for (const double weight : weights) {
    sum += weight;
    offsets.push_back(all > 0 ? static_cast<std::int32_t>(std::llround(double(total) * sum / all))
                              : 0);
  }
  return offsets;
}

std::vector<std::int32_t> key_lengths(const AttentionSpec& spec, const ProblemShape& shape,
                                      std::mt19937_64& random) {
  const Lengths& lengths = spec.lengths;
  if (lengths.kind == LengthsKind::kGiven && fits(spec, shape)) return lengths.given;
  const std::vector<double> weights = weights_of(lengths, shape.batch);
  std::vector<std::int32_t> drawn;
  if (is_paged(spec)) {
    const auto least = std::min<std::int64_t>(shape.kv_len, spec.shared_prefix);
    for (const double weight : weights) {
      drawn.push_back(static_cast<std::int32_t>(
          std::max<std::int64_t>(least, std::llround(weight * double(shape.kv_len)))));
    }
  } else {
    const std::vector<std::int32_t> offsets = offsets_in_proportion(weights, shape.kv_len);
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
      drawn.push_back(offsets[i + 1] - offsets[i]);
  }
  std::ranges::shuffle(drawn, random);
  return drawn;
}

Status check_lengths(const AttentionSpec& spec, const ProblemShape& shape) {
  const Lengths& lengths = spec.lengths;
  if (lengths.kind == LengthsKind::kUnsaid) return ok_status();
  if (!is_packed(spec)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "lengths-layout",
                 .message = fmt::format("lengths are given, and {} has layout `{}`", spec.name,
                                        to_string(spec.layout)),
                 .hint = "sequences have lengths of their own with `layout: thd` and `paged`"};
  }
  if (lengths.kind == LengthsKind::kGiven) return check_given(spec, shape);
  const double share = lengths.arguments[0];
  if (lengths.kind == LengthsKind::kSkewed && shape.batch > 1 && share * double(shape.batch) < 1) {
    return bad_shape(
        fmt::format("the longest of {} sequences has {} of all keys, less than the others",
                    shape.batch, share),
        fmt::format("`longest` is {} at least", std::ceil(1e6 / double(shape.batch)) / 1e6));
  }
  return ok_status();
}

}  // namespace attune
