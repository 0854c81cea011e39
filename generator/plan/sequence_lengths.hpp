// What the cost model takes the sequences of packed and paged problems for, whose lengths only the
// device knows: docs/lab/serving_cliffs.md has what it was held against.
#pragma once

#include <algorithm>
#include <cmath>

#include "generator/spec/draw_lengths.hpp"
#include "generator/spec/shape.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

// Keys of a mean sequence over the most that one may have, of which a mask leaves `share`. In pages
// the shape says the latter, and lengths are as those that are drawn where nothing is said. Of a
// window all have as many.
inline double filled_share(const AttentionSpec& spec, const ProblemShape& shape, double share) {
  return is_paged(spec) && shape.batch > 1 ? 1 - (1 - kMeanUnsaid) * std::min(share, 1.0) : 1;
}

// What a launch in front takes that lists the query tiles of packed sequences, longest first, and
// the wait for it: 16 sequences of 256 keys and 8 queries take an H200 23 us so, and 17 in
// stretches of the decode family.
inline double tile_list_us(const AttentionSpec& spec) { return is_packed(spec) ? 6 : 0; }

// From so many queries a mean sequence on, lengths differ.
constexpr std::int64_t kManyQueries = 17;

// From so many queries a mean sequence on, chunks are long or nearly all sequences are chunks.
constexpr std::int64_t kLongChunks = 64;

// Whether some of many sequences are chunks of prompts and the others single tokens of long
// contexts, as in a step of an engine: drafted tokens are fewer than a mean sequence has then.
// Measured were means of 9 to 55, 15 to 256 sequences and 900 keys and more. Where all sequences
// have 16 to 32 queries each it costs up to 4 %, but 32 x 24 on 162 to 8174 keys, 12 heads on 1,
// which took 62 us, takes 71. Of more queries a mean sequence, from 7 sequences on, it is a bet, as
// chunks alone have as many: these lose up to 10 % by it, and steps take up to twice as long
// without. So only where heads share keys, and a context is longer than a prompt would be.
inline bool has_chunks_beside_tokens(const AttentionSpec& spec, const ProblemShape& shape) {
  constexpr std::int64_t kLeastOfMean = 9, kMostOfMean = 512;
  constexpr std::int64_t kManySequences = 15, kSomeSequences = 7;
  constexpr std::int64_t kLongContext = 800, kOfContext = 8;
  if (!is_packed(spec) || shape.q_len < kLeastOfMean || shape.q_len > kMostOfMean) return false;
  const bool is_long = shape.q_len >= kLongChunks;
  if (is_long && shape.heads == shape.kv_heads) return false;
  return shape.batch >= (is_long ? kSomeSequences : kManySequences) &&
         shape.kv_len >= std::max(kLongContext, kOfContext * shape.q_len);
}

inline bool has_long_chunks_beside_tokens(const AttentionSpec& spec, const ProblemShape& shape) {
  return shape.q_len >= kLongChunks && has_chunks_beside_tokens(spec, shape);
}

// Tiles of `rows` queries that a mean sequence of `shape.q_len` has. Where there are many queries
// each, sequences end anywhere in their last tile; a single token beside chunks takes a tile.
inline double mean_query_tiles(const AttentionSpec& spec, const ProblemShape& shape, double rows) {
  const double queries = double(shape.q_len);
  // A long chunk's tiles have fewer keys than single tokens.
  constexpr double kOfLongChunk = 0.7;
  if (has_long_chunks_beside_tokens(spec, shape)) return 1 + kOfLongChunk * (queries - 1) / rows;
  if (has_chunks_beside_tokens(spec, shape)) return 1 + (queries - 1) / rows;
  if (!is_packed(spec) || shape.q_len < kManyQueries) return std::ceil(queries / rows);
  return std::max(1.0, queries / rows + 0.5);
}

// ShapeCost::seen of tiles of `rows` queries. Of plans that memory makes equal the one that
// computes the least is the fastest, and memory waits for a chunk's tiles, which come first: a
// share of them by which the plans of measured steps come in the order of their times.
inline double seen_of_tiles(const AttentionSpec& spec, const ProblemShape& shape, double rows) {
  constexpr double kSeen = 0.02, kSeenOfChunk = 0.6;
  if (!has_chunks_beside_tokens(spec, shape)) return is_packed(spec) ? kSeen : 0;
  const double of_chunk = double(shape.q_len - 1) / rows;  // over those of the others
  return kSeen + kSeenOfChunk * of_chunk / (of_chunk + 1);
}

}  // namespace attune
