#include "generator/plan/item_counts.hpp"

#include "generator/plan/launch.hpp"
#include "templates/work_items.h"

namespace attune {

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t value = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(value, factor, &value)) return kTooLarge;
  }
  return value;
}

std::int64_t packed_items_of_head(const ProblemShape& shape, std::int64_t tile) {
  return att::packed_tiles(shape.heads, shape.kv_heads, shape.q_len, tile).per_kv_head();
}

std::int64_t packed_items(const ProblemShape& shape, std::int64_t tile) {
  return packed_items_of_head(shape, tile) * shape.kv_heads * shape.batch;
}

namespace {

std::int64_t parts_of(std::int64_t key_tiles, const ProblemShape& shape, int tile_q, bool uneven) {
  const std::int64_t query_tiles = att::tile_count<std::int64_t>(shape.q_len, tile_q);
  return att::walk_parts(product({key_tiles, shape.kv_heads}),
                         product({query_tiles, shape.heads / shape.kv_heads}), uneven);
}

}  // namespace

std::int64_t walk_parts(const ProblemShape& shape, int tile_kv, int tile_q, bool uneven) {
  return parts_of(product({att::tile_count<std::int64_t>(shape.kv_len, tile_kv), shape.batch}),
                  shape, tile_q, uneven);
}

std::int64_t most_listed_parts(const ProblemShape& shape, int tile_kv, int tile_q, bool uneven) {
  return parts_of(att::sequence_item_count<std::int64_t>(shape.kv_len, shape.batch, tile_kv), shape,
                  tile_q, uneven);
}

std::int64_t listed_parts(const ProblemShape& shape, int tile_kv, int tile_q, bool uneven) {
  ProblemShape together = shape;
  together.kv_len = product({shape.kv_len, shape.batch});
  return most_listed_parts(together, tile_kv, tile_q, uneven);
}

}  // namespace attune
