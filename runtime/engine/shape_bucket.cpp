#include "runtime/engine/shape_bucket.hpp"

#include <algorithm>
#include <bit>

namespace attune {
namespace {

// Query rows of the smallest tile of a GPU's plans; others' are multiples. A static schedule deals
// tiles out evenly or not by their very number, and 22 of them for 132 processors cost 1.8 times
// what 23 do.
constexpr std::int64_t kQueryTile = 64;
// So many such tiles are few: the last, partly filled wave of a GPU's processors is a tenth of all
// or more, and plans differ in how they fill it.
constexpr std::int64_t kFewTiles = 4096;
// How often an octave is halved. An eighth of keys is a multiple of what plans' tiles differ by
// from 128 on.
constexpr int kKeyHalvings = 3, kQueryHalvings = 4, kBatchHalvings = 3;

// A step of the octave (2^n, 2^(n+1)] that `size` lies in. By a shift: a division of 64 bits takes
// some processors 40 cycles, and every look-up would do two.
std::int64_t step_of(std::int64_t size, int halvings) {
  const std::uint64_t octave =
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(size - 1, 1)));
  return std::max<std::int64_t>(static_cast<std::int64_t>(octave >> halvings), 1);
}

// `step`: a power of two, as all are here.
std::int64_t round_up(std::int64_t size, std::int64_t step) { return (size + step - 1) & -step; }

}  // namespace

ProblemShape bucket_of(const ProblemShape& shape, Grain grain) noexcept {
  if (grain == Grain::kExact) return shape;
  const bool fine = grain == Grain::kFine;
  const std::int64_t tiles =
      shape.batch * shape.heads * ((shape.q_len + kQueryTile - 1) / kQueryTile);
  const auto step = [&](std::int64_t size, int halvings) {
    return step_of(size, fine ? halvings : 0);
  };
  const std::int64_t batch = !fine || tiles > kFewTiles
                                 ? round_up(shape.batch, step(shape.batch, kBatchHalvings))
                                 : shape.batch;
  const std::int64_t rows = step(shape.q_len, kQueryHalvings);
  const std::int64_t q_len = round_up(shape.q_len, fine ? std::min(rows, kQueryTile) : rows);
  const std::int64_t keys = round_up(shape.kv_len, step(shape.kv_len, kKeyHalvings));
  const std::int64_t kv_len = shape.kv_len == shape.q_len  ? q_len
                              : shape.kv_len > shape.q_len ? std::max(keys, q_len)
                                                           : std::min(keys, q_len);
  return {batch, shape.heads, shape.kv_heads, q_len, kv_len};
}

}  // namespace attune
