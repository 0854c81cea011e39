// How many items and parts a launch has, for its grid, its workspace and what it costs alike. What
// is larger than 64 bits can say is kTooLarge.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "generator/spec/shape.hpp"

namespace attune {

std::int64_t product(std::initializer_list<std::int64_t> factors);

// Of `tile` queries of the heads that share a K/V head: of one such head, and of all.
std::int64_t packed_items_of_head(const ProblemShape& shape, std::int64_t tile);
std::int64_t packed_items(const ProblemShape& shape, std::int64_t tile);

// Of the walk of a tile of `tile_kv` keys over tiles of `tile_q` queries; uneven under a mask.
std::int64_t walk_parts(const ProblemShape& shape, int tile_kv, int tile_q, bool uneven);
// Of packed sequences, of which the shape says how long they are together: the most of any.
std::int64_t most_listed_parts(const ProblemShape& shape, int tile_kv, int tile_q, bool uneven);
// Of one, where the shape says how long each is.
std::int64_t listed_parts(const ProblemShape& shape, int tile_kv, int tile_q, bool uneven);

}  // namespace attune
