// Where the sums of what a head learns lie, and how a warp adds to them.
//
// Of what one (b, h) has a known number (a slope, a table by distance, T5's buckets) every 16 keys
// have sums of their own in the workspace, which one warp makes, in one order. The last launch adds
// them up (templates/tile/learned_totals.cuh). There is no atomic in it.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/work_items.h"

namespace att {

ATT_FN void reduce_add(float* to, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

ATT_FN float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

// Of the lanes' numbers `bin`: which lanes have this one's.
ATT_FN unsigned lanes_with_equal(int bin) {
  unsigned lanes;
  asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(lanes) : "r"(bin));
  return lanes;
}

ATT_FN float shuffle_float(float value, int lane) {
  return __builtin_bit_cast(float, shuffle_from(__builtin_bit_cast(int, value), lane));
}

// ---- Where sums lie.

constexpr int kLearnedKeys = 16;          // that have sums of their own: a warp's
constexpr int kMostBinsInRegisters = 64;  // two a lane

// More numbers a head than registers hold are added to the tensor as they come, unless all sums
// have an order. As in generator/plan/learned_plan.cpp.
ATT_FN constexpr bool has_sums(int load) {
  return kGradLoadBins[load] > 0 &&
         (kGradLoadBins[load] <= kMostBinsInRegisters || plan::kOrderedSums);
}
ATT_FN constexpr int learned_columns(int loads) {
  int columns = 0;
  for (int i = 0; i < loads; ++i) columns += has_sums(i) ? kGradLoadBins[i] : 0;
  return columns;
}
constexpr int kLearnedColumns = learned_columns(kGradLoads);

ATT_FN int learned_units_of_head(const BackwardParams& p) {
  return spec::kIsPacked ? sequence_item_count(p.kv_len, p.batch, kLearnedKeys)
                         : tile_count(p.kv_len, kLearnedKeys);
}
// kLearnedColumns sums of head h that keys [kLearnedKeys * unit, ...) of a sequence have.
ATT_FN float* learned_sums(const BackwardParams& p, const Sequence& sequence, int b, int h,
                           int unit) {
  const int before = spec::kIsPacked ? first_sequence_tile(sequence.kv_first, b, kLearnedKeys) : 0;
  const long long head = static_cast<long long>(sequence.slice) * p.heads + h;
  return p.learned_sums + (head * learned_units_of_head(p) + before + unit) * kLearnedColumns;
}

// ---- A warp's sums of one look-up of one head.

template <int kLoad>
struct WarpSums {
  static constexpr int kBins = kGradLoadBins[kLoad];
  static constexpr bool kInWorkspace = has_sums(kLoad);
  static constexpr bool kInRegisters = kInWorkspace && kBins <= kMostBinsInRegisters;
  static constexpr int kWords = kInRegisters ? (kBins + 31) / 32 : 1;
  float totals[kWords] = {};  // number 32 i + lane

  // Adds `sum`, which all lanes have, to number `bin`. to: see destination().
  ATT_MEMBER void add(float* to, int bin, float sum) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) totals[i] += lane_index() + 32 * i == bin ? sum : 0.0f;
    } else if (lane_index() == 0 && sum != 0.0f) {
      add_to_memory(to + bin, sum);
    }
  }
  // Adds each lane's value to its own number, in an order that is always the same: nobody waits for
  // another's addition, and nobody adds to a number at the same time.
  ATT_MEMBER void add_each(float* to, int bin, float value) {
    if constexpr (kInRegisters) {
      fetch_each(bin, value);
    } else {
      store_each(to, bin, value);
    }
  }

  // Where add() adds, of a head's `first` keys; registers need no place.
  static ATT_MEMBER float* destination(const BackwardParams& p, const Context& c, int first) {
    if constexpr (kInRegisters) {
      return nullptr;
    } else if constexpr (kInWorkspace) {
      return learned_sums(p, sequence_of(c), c.b, c.h, first / kLearnedKeys) +
             learned_columns(kLoad);
    } else {
      return p.d_tensors[kGradLoadSlot[kLoad]] + grad_load_base<kLoad>(c);
    }
  }
  // To the workspace, once a head.
  ATT_MEMBER void store(const BackwardParams& p, const Context& c, int first) {
    if constexpr (kInRegisters) {
      float* const to =
          learned_sums(p, sequence_of(c), c.b, c.h, first / kLearnedKeys) + learned_columns(kLoad);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (lane_index() + 32 * i < kBins && first < c.kv_len)
          to[lane_index() + 32 * i] = totals[i];
        totals[i] = 0.0f;
      }
    }
  }

 private:
  // Lanes that have the same number are a list, each of which knows the next one. In five steps the
  // first one of each gets the list's sum, and the lane whose number it is fetches it.
  ATT_MEMBER void fetch_each(int bin, float value) {
    constexpr unsigned kAll = 0xffffffffu;
    const int lane = lane_index();
    unsigned equal = kAll,
             own = kAll;  // lanes that have this lane's number; that have number `lane`
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
      const unsigned ones = ballot((bin >> bit & 1) != 0);
      equal &= (bin >> bit & 1) != 0 ? ones : ~ones;
      own &= (lane >> bit & 1) != 0 ? ones : ~ones;
    }
    const unsigned upper = kWords > 1 ? ballot(bin >= 32) : 0u;
    if constexpr (kWords > 1) equal &= bin >= 32 ? upper : ~upper;
    const unsigned behind = equal & ~(kAll >> (31 - lane));
    constexpr int kNone = 32;  // behind the last lane
    int next = behind != 0 ? highest_bit(behind & (0u - behind)) : kNone;
#pragma unroll
    for (int step = 0; step < 5; ++step) {
      const float of_next = shuffle_float(value, next % 32);
      const int after = shuffle_from(next, next % 32);
      value += next != kNone ? of_next : 0.0f;
      next = next != kNone ? after : kNone;
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const unsigned from = i == 0 ? own & ~upper : own & upper;
      const float found = shuffle_float(value, from != 0 ? highest_bit(from & (0u - from)) : 0);
      totals[i] += from != 0 ? found : 0.0f;
    }
  }
  // To memory; equal numbers of the warp are summed first.
  ATT_MEMBER void store_each(float* to, int bin, float value) {
    const bool is_alone = lanes_with_equal(bin) == 1u << lane_index();
    if (is_alone && value != 0.0f) add_to_memory(to + bin, value);
    unsigned pending = ballot(value != 0.0f && !is_alone);
#pragma unroll 1
    while (pending != 0) {
      const int of = shuffle_from(bin, highest_bit(pending));
      const bool is_of = bin == of;
      add(to, of, warp_sum(is_of ? value : 0.0f));
      pending &= ~ballot(is_of);
    }
    sync_warp();  // others add to these numbers next
  }
  static ATT_MEMBER void add_to_memory(float* to, float value) {
    if constexpr (kInWorkspace) {
      *to += value;
    } else {
      reduce_add(to, value);
    }
  }
};

}  // namespace att
