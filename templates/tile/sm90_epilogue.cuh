// The end of a work item: normalise O, judge whether the frozen maximum held, store O and the LSE.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/magnitude.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/sm90_key_pieces.cuh"
#include "templates/tile/sm90_output_rows.cuh"
#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

// With kRowIsRange, how many of the keys a row has.
ATT_FN int live_keys(const Context& c, int row, const KeySpan& keys) {
  if (spec::kIsPacked && c.kv_len == 0) return 0;  // look-ups are proven for one key at least
  const RowMask mask = row_mask(c, row, 0);
  return min_i32(mask.end, keys.end) - max_i32(mask.begin, keys.begin);
}
ATT_FN int live_keys(const Context& c, int row) { return live_keys(c, row, {0, c.kv_len}); }

// Sums the rows over the four threads that share them. Bits 0 and 1 of what it returns say which
// row's sum proves nothing, bit 2 that an element of O is not finite: P >= 0, so a sum below the
// limit bounds every exponential, and O is finite where no product overflowed. What `tracked` its
// references has bounded them itself.
ATT_FN unsigned total_rows(const Output& o, RowState& rows, bool tracked) {
  unsigned bad = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.sum[half] = quad_sum(rows.sum[half]);
    const bool in_range = rows.sum[half] < (tracked ? 0x1p100f : kFrozenLimit) &&
                          (!kHasSmallestSum || rows.sum[half] >= kSmallestSum);
    if (!in_range) bad |= 1u << half;
  }
  float finite[8] = {};  // NaN once an element is not; eight short chains rather than a long one
#pragma unroll
  for (int i = 0; i < kColumnsV / 2; ++i) finite[i % 8] = o[i] * 0.0f + finite[i % 8];
#pragma unroll
  for (int i = 1; i < 8; ++i) finite[0] += finite[i];
  return finite[0] != 0.0f ? bad | 4u : bad;
}

// Whether what total_rows() found matters: not in rows past q_len, and a row without keys sums to
// 0. `keys`: the item's.
ATT_FN bool has_overflowed(const Context& c, unsigned bad, int row, const KeySpan& keys) {
  bool overflowed = (bad & 4) != 0 && row < c.q_len;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + 8 * half;
    const bool is_empty = (spec::kIsPacked && c.kv_len == 0) ||
                          (kCutsKeys && keys.begin >= keys.end) ||
                          (kConstantReference && spec::kHasMask && live_keys(c, at, keys) <= 0);
    overflowed = overflowed || ((bad >> half & 1) != 0 && at < c.q_len && !is_empty);
  }
  return overflowed;
}

// What O of a row is divided by. O of a row with one key is that key's V, but only where the
// exponential is divided by itself as the product saw it, rounded. (With a maximum for reference it
// is a power of two.)
ATT_FN float divisor(const Context& c, float sum, int row) {
  if constexpr (kConstantReference && spec::kHasMask && !spec::kHasSink) {
    if (live_keys(c, row) == 1) {
      return __builtin_bit_cast(float, pack_2<spec::kDType>(0.0f, sum));
    }
  }
  return sum;
}

// With kAnyMagnitude: references in units of kReferenceUnit, as results of other pieces have them,
// and normalise(). `exact`: as of softmax_running().
ATT_FN void references_to_scores(RowState& rows, bool exact) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float in_units = from_log2(rows.reference[half] - kScoreOffset * kLog2E);
    rows.reference[half] = exact ? rows.maximum[half] : in_units;
  }
}

// Divides O by the row sums, and leaves the natural-log LSE in rows.sum.
ATT_FN void normalise(const Context& c, Output& o, RowState& rows, int row) {
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    float reference = rows.reference[half];
    if constexpr (kAnyMagnitude) reference = score_of_reference(reference);
    float factor = 1.0f;
    if constexpr (spec::kHasSink) {
      constexpr float kUnit = kAnyMagnitude ? kLog2E : 1.0f;
      const float logit = kAnyMagnitude ? sink(c) : sink(c) * kLog2E;
      const float top = sum == 0.0f ? logit : math_max(reference, logit);
      factor = sum == 0.0f ? 0.0f : math_exp2((reference - top) * kUnit);
      sum = sum * factor + math_exp2((logit - top) * kUnit);
      reference = top;
    }
    inverse[half] = sum == 0.0f ? 0.0f : factor / divisor(c, sum, row + 8 * half);
    if constexpr (spec::kHasDropout) inverse[half] *= dropout_keep_scale(c);
    if constexpr (kAnyMagnitude) {
      rows.sum[half] = sum == 0.0f ? -infinity() : reference + math_log2(sum) * kLn2;
    } else {
      rows.sum[half] = sum == 0.0f ? -infinity() : (reference + math_log2(sum)) * kLn2;
    }
  }
#pragma unroll
  for (int i = 0; i < kColumnsV / 2; ++i) o[i] *= inverse[i / 2 % 2];
}

// O through shared memory to global memory by TMA, which leaves out the rows past q_len. Each warp
// moves its own 16 rows: a barrier of the warpgroup costs as much as the rest.
constexpr int kStoreRows = 16;

// The slabs of O from `first_slab` on for which the buffer has room.
ATT_FN void stage_output(const Output& o, unsigned buffer, int first_slab) {
  constexpr int kSlabSteps = kSlabColumns / 16;
#pragma unroll
  for (int i = 0; i < kStagedSlabs * kSlabSteps; ++i) {
    const int step = first_slab * kSlabSteps + i;
    if (step >= kColumnsV / 16) break;
    unsigned packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      packed[j] = pack_2<spec::kDType>(o[8 * step + 2 * j], o[8 * step + 2 * j + 1]);
    }
    stmatrix_x4(fragment_address(buffer, i), packed);
  }
  fence_shared_for_async();
}

// Starts the store of what stage_output() left. One lane of the warp calls it.
ATT_FN void store_staged(const TensorMap* o_map, unsigned buffer, const Context& c, int first_slab,
                         int first_row) {
  const int warp = thread_index() % kWarpgroupThreads / 32;
  const Sequence sequence = sequence_of(c);
#pragma unroll
  for (int i = 0; i < kStagedSlabs; ++i) {
    if (first_slab + i >= kVSlabs) break;
    tma_store(o_map, buffer + i * kQSlabBytes + warp * kStoreRows * kRowBytes,
              (first_slab + i) * kSlabColumns, sequence.q_first + first_row, c.h, sequence.slice);
  }
  tma_store_commit();
}

// `buffer` is the warpgroup's, first_row the warp's. It must be free; afterwards a store reads it.
ATT_FN void store_output(const Output& o, const TensorMap* o_map, unsigned buffer, const Context& c,
                         int first_row) {
  const bool leader = thread_index() % 32 == 0;
#pragma unroll
  for (int slab = 0; slab < kVSlabs; slab += kStagedSlabs) {
    if (slab > 0) {
      if (leader) tma_store_wait_read();
      sync_warp();
    }
    stage_output(o, buffer, slab);
    sync_warp();
    if (leader) store_staged(o_map, buffer, c, slab, first_row);
  }
}

ATT_FN void store_lse(const Context& c, const RowState& rows, int row) {
  if (c.params.lse == nullptr || thread_index() % 4 != 0) return;
  float* lse = c.params.lse + lse_offset(c.params, sequence_of(c), c.h, 0);
  if (row < c.q_len) lse[row * spec::kResidues] = rows.sum[0];
  if (row + 8 < c.q_len) lse[(row + 8) * spec::kResidues] = rows.sum[1];
}

}  // namespace sm90
}  // namespace att
