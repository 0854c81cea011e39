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

// Tiles of `rows` queries that a mean sequence of `shape.q_len` has. Where there are several
// queries each, sequences end anywhere in their last tile, and beside a chunk of a prompt there may
// be single tokens, which take a tile each.
inline double mean_query_tiles(const AttentionSpec& spec, const ProblemShape& shape, double rows) {
  constexpr double kFewQueries = 16;  // from so many on they differ
  const double queries = double(shape.q_len);
  if (!is_packed(spec) || queries <= kFewQueries) return std::ceil(queries / rows);
  return std::max(1.0, queries / rows + 0.5);
}

}  // namespace attune
