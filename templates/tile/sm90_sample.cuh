// A few scores of a CTA's first item, of keys all along it. Where keys are walked upwards its first
// tile does not show that scores climb, and the item is its CTA's longest. A warp of its own takes
// them while Q and K are on their way.
#pragma once

#include "templates/ptx/mma.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/sm90_walk.cuh"
#include "templates/tile/sm90_ways.cuh"
#include "templates/tile/softmax_scale.cuh"

namespace att {
namespace sm90 {

constexpr bool kSamples = kHints && kLearns && spec::kHasMask && kRowIsRange && !kRowHasBegin &&
                          !spec::kHasScore && !spec::kIsPacked && !spec::kIsPaged && !kCutsKeys &&
                          kCluster == 1 && spec::kHeadDimQk % 32 == 0 && !kHeadsAbreast;

// In shorter items there is little to be done in vain.
constexpr int kLeastSampledKeys = 2048;

// A bit of failed_word() that stands for no warpgroup.
constexpr unsigned kSampledBit = 1u << 8;
static_assert(kSlices <= 8);

// Whether scores of eight of the item's last rows and eight keys are so far apart that the first
// way does not serve them. The columns of Q and K are multiplied in an order that 16 bytes of each
// come to a thread at once.
ATT_FN bool is_far_apart(const Context& c, const Sequence& sequence, int q0) {
  const ForwardParams& p = c.params;
  const int lane = thread_index() % 32;
  const int last = min_i32(q0 + kItemQueries, c.q_len) - 1;
  const int row = max_i32(last - lane / 4, 0);
  const int keys = row_bounds(c, last).end;
  if (keys < kLeastSampledKeys) return false;
  const int key = (lane / 4 * 2 + 1) * (keys / 16);
  const char* const q = static_cast<const char*>(p.q) +
                        2 * query_offset(sequence, p.q_stride, c.h, row) + lane % 4 * 16;
  const char* const k = static_cast<const char*>(p.k) +
                        2 * key_offset(sequence, p.k_stride, c.h_kv, key) + lane % 4 * 16;
  // This warp has no registers to have all of it on its way.
#pragma unroll
  for (int column = 0; column < spec::kHeadDimQk; column += 64) {
    prefetch_global(q + 2 * column);
    prefetch_global(k + 2 * column);
  }
  float score[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int column = 0; column < spec::kHeadDimQk; column += 32) {
    unsigned of_q[4], of_k[4];
    load_global_16(q + 2 * column, of_q);
    load_global_16(k + 2 * column, of_k);
    mma_m16n8k16<spec::kDType>(score, {of_q[0], 0, of_q[1], 0}, of_k[0], of_k[1]);
    mma_m16n8k16<spec::kDType>(score, {of_q[2], 0, of_q[3], 0}, of_k[2], of_k[3]);
  }
  const float to_log2 = softmax_scale(p) * kLog2E;
  const float a = score[0] * to_log2, b = score[1] * to_log2;
  const auto some = [](bool of_lane) { return !all_lanes(!of_lane); };
  if constexpr (kConstantReference) {
    return some(a > kHighest || b > kHighest) && some(a < kOrdinary || b < kOrdinary);
  } else {
    const float high = math_max(a, b), low = math_min(a, b);
    const float others = shuffle_xor(low, 1), more = shuffle_xor(low, 2);
    return some(high - math_min(low, math_min(others, more)) > kFarApart);
  }
}

}  // namespace sm90
}  // namespace att
