#include "runtime/reference/draw_sequences.hpp"

#include <algorithm>
#include <optional>

#include "generator/spec/draw_lengths.hpp"

namespace attune {
namespace {

using Random = std::mt19937_64;

bool is_said(const AttentionSpec& spec) { return spec.lengths.kind != LengthsKind::kUnsaid; }

// Where `count` sequences of `total` tokens begin, and the end of the last.
std::vector<std::int32_t> random_offsets(std::int64_t count, std::int64_t total, Random& random) {
  std::uniform_int_distribution<std::int32_t> anywhere(0, static_cast<std::int32_t>(total));
  std::vector<std::int32_t> offsets = {0};
  for (std::int64_t i = 1; i < count; ++i) offsets.push_back(anywhere(random));
  std::ranges::sort(offsets);
  offsets.push_back(static_cast<std::int32_t>(total));
  return offsets;
}

// As many of each sequence; nullopt: there are more than a step of decoding has.
std::optional<std::vector<std::int32_t>> few_queries(const ProblemShape& shape) {
  constexpr std::int64_t kFewQueries = 16;
  if (shape.q_len % shape.batch != 0 || shape.q_len / shape.batch > kFewQueries)
    return std::nullopt;
  const auto each = static_cast<std::int32_t>(shape.q_len / shape.batch);
  std::vector<std::int32_t> offsets;
  for (std::int32_t b = 0; b <= shape.batch; ++b) offsets.push_back(b * each);
  return offsets;
}

std::vector<std::int32_t> queries_beside(std::span<const std::int32_t> keys,
                                         const ProblemShape& shape) {
  if (auto few = few_queries(shape)) return *std::move(few);
  return offsets_in_proportion(std::vector<double>(keys.begin(), keys.end()), shape.q_len);
}

}  // namespace

HostSequences draw_packed_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                    Random& random) {
  HostSequences sequences;
  const bool is_square = shape.q_len == shape.kv_len;
  if (!is_said(spec)) {
    sequences.cu_q = random_offsets(shape.batch, shape.q_len, random);
    sequences.cu_kv =
        is_square ? sequences.cu_q : random_offsets(shape.batch, shape.kv_len, random);
    return sequences;
  }
  const std::vector<std::int32_t> keys = key_lengths(spec, shape, random);
  sequences.cu_kv = {0};
  for (const std::int32_t length : keys) sequences.cu_kv.push_back(sequences.cu_kv.back() + length);
  sequences.cu_q = is_square ? sequences.cu_kv : queries_beside(keys, shape);
  return sequences;
}

HostSequences draw_paged_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                   Random& random) {
  HostSequences sequences;
  if (is_said(spec)) {
    sequences.used_kv = key_lengths(spec, shape, random);
    sequences.cu_q = queries_beside(sequences.used_kv, shape);
    return sequences;
  }
  auto few = few_queries(shape);
  sequences.cu_q = few ? *std::move(few) : random_offsets(shape.batch, shape.q_len, random);
  const auto room = static_cast<std::int32_t>(shape.kv_len);
  const std::int32_t common = std::min(room, spec.shared_prefix);
  const auto least = static_cast<std::int32_t>(kLeastUnsaid * room);
  std::uniform_int_distribution<std::int32_t> length(std::max(least, common), room);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    sequences.used_kv.push_back(b == 0 ? room : length(random));
  }
  return sequences;
}

}  // namespace attune
