// Gradients of what the score looks up: sums over the elements that look a number up.
//
// Of a tile, a warp has 16 keys and all queries. What most of a tile's elements share is summed
// before anything is added to a number:
//  - one number a head (a slope) in a register;
//  - where the number depends on the distance alone (T5's buckets, relative biases): if all
//    distances of the tile have one, in a register; else diagonals first, by shuffles;
//  - other known numbers element by element, equal ones of the warp first;
//  - what depends on a length (a dense bias) goes straight to the tensor.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/tile/learned_sums.cuh"

namespace att {

// Sums over the diagonals of a warp's 16 x kColumns tile, in the order of its accumulators: of
// block n of 8 columns (queries), lane 4 r + c has keys r and r + 8 beside queries 8 n + 2 c and
// the one after. Distances, key less query, are relative to those of the tile's first key and
// query.
//
// Within a thread an element and that of 8 keys and 8 queries before are of one diagonal. A lane's
// other query has the diagonal of the row after; so it moves to that row's lane, or, from row 0, to
// row 7 of the next block. Then columns are folded onto the first one, which 2 rows and 1 column
// are a step of. What moves from one block to the next waits in a register.
struct Diagonals {
  float carried[2] = {};  // of both queries: keys 0 to 7 of the block before
  float waiting[3] = {};
  float gathered = 0.0f;  // of four blocks, in the order of distances

  static ATT_MEMBER constexpr int blocks(int columns) { return columns / 8 + 2; }

  // Block n's elements: (key, query) and (key, query + 1), then the same of key + 8. True when
  // `gathered` has four blocks' sums: lane i's distance is distance(n / 4).
  ATT_MEMBER bool add(int n, const float (&value)[4], bool is_last) {
    const int lane = lane_index(), row = lane / 4;
    const float even = value[2] + carried[0];
    const float odd = value[3] + carried[1];
    carried[0] = value[0];
    carried[1] = value[1];
    float sum = even + moved(0, odd, lane + 4, row < 7);
    sum += moved(1, sum, (lane + 8) % 32 + 1, row < 6);
    sum += moved(2, sum, (lane + 16) % 32 + 2, row < 4);
    // The first column's rows have distances 8 - 8 n + row.
    const float of_block = shuffle_float(sum, 4 * (7 - lane % 8));
    gathered = lane / 8 == n % 4 ? of_block : n % 4 == 0 ? 0.0f : gathered;
    return n % 4 == 3 || is_last;
  }
  static ATT_MEMBER int distance(int round) { return 15 - lane_index() - 32 * round; }

 private:
  // Another lane's value, of this block or, beyond the last row, of the one before.
  ATT_MEMBER float moved(int step, float value, int lane, bool is_of_block) {
    const float now = shuffle_float(value, lane % 32);
    const float before = waiting[step];
    waiting[step] = now;
    return is_of_block ? now : before;
  }
};

// A warp's part of one look-up.
template <int kLoad>
struct LearnedLoad {
  static constexpr int kBins = kGradLoadBins[kLoad];
  static constexpr bool kIsSlope = kBins == 1;
  static constexpr bool kByDistance = kBins > 1 && kGradLoadIsDistance[kLoad];
  static constexpr bool kByElement = kBins > 1 && !kByDistance && has_sums(kLoad);

  WarpSums<kLoad> sums;
  // What is not yet in the sums: numbers `bins`, by distance one for the warp; else of either of a
  // lane's keys.
  float open[2] = {};
  int bins[2] = {};
  Diagonals diagonals;
  bool has_many = false;  // the tile's distances have different numbers

  static ATT_MEMBER bool is_wanted(const BackwardParams& p) {
    return p.d_tensors[kGradLoadSlot[kLoad]] != nullptr;
  }

  template <int kColumns>
  ATT_MEMBER void begin_tile(const BackwardParams& p, const Context& c, int key, int query) {
    if constexpr (kByDistance) {
      if (!is_wanted(p)) return;
      const int first = shuffle_from(bin_at<kColumns>(c, key, query, 0), 0);
      bool is_same = true;
#pragma unroll
      for (int round = 0; round < rounds(kColumns); ++round) {
        is_same &= bin_at<kColumns>(c, key, query, round) == first;
      }
      has_many = !all_lanes(is_same);
      if (has_many) diagonals = {};
      if (!has_many && first != bins[0]) {
        close(p, c, key);
        bins[0] = first;
      }
    }
  }
  ATT_MEMBER bool is_mixed() const { return kByDistance && has_many; }

  // Block n: value[e] of key first_key + lane / 4 + 8 (e / 2), query q[e]. kMixed: some look-up's
  // tile is.
  template <int kColumns, bool kMixed>
  ATT_MEMBER void add(const BackwardParams& p, const Context& c, int key, int query, int n,
                      const int (&q)[4], const float (&value)[4]) {
    if constexpr (kIsSlope) {
      open[0] += value[0] + value[1] + value[2] + value[3];
    } else if constexpr (kByDistance) {
      if (kMixed && has_many) {
        add_diagonals<kColumns>(p, c, key, query, n, value);
      } else {
        open[0] += value[0] + value[1] + value[2] + value[3];
      }
    } else if (is_wanted(p)) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = key + lane_index() / 4 + e / 2 * 8;
        const long long offset = grad_load_offset<kLoad>(c, q[e], k);
        if constexpr (kByElement) {
          const int bin = static_cast<int>(offset - grad_load_base<kLoad>(c));
          if (!all_lanes(value[e] == 0.0f || bin == bins[e / 2])) {
            sums.add_each(WarpSums<kLoad>::destination(p, c, key), bins[e / 2], open[e / 2]);
            open[e / 2] = 0.0f;
            bins[e / 2] = bin;
          }
          open[e / 2] += value[e];
        } else if (value[e] != 0.0f) {
          float* const to = p.d_tensors[kGradLoadSlot[kLoad]] + offset;
          if constexpr (kGradLoadIsExclusive[kLoad]) {
            *to = value[e];
          } else if constexpr (plan::kOrderedSums) {
            *to += value[e];  // this thread has the pair of every batch and head
          } else {
            reduce_add(to, value[e]);
          }
        }
      }
    }
  }

  // What the last elements' diagonals go on with.
  template <int kColumns>
  ATT_MEMBER void end_tile(const BackwardParams& p, const Context& c, int key, int query) {
    if constexpr (kByDistance) {
      if (!has_many) return;
#pragma unroll
      for (int n = kColumns / 8; n < Diagonals::blocks(kColumns); ++n) {
        add_diagonals<kColumns>(p, c, key, query, n, {});
      }
    }
  }

  // After a head's last tile.
  ATT_MEMBER void end_head(const BackwardParams& p, const Context& c, int key) {
    if constexpr (kIsSlope || kByDistance || kByElement) {
      if (!is_wanted(p)) return;
      close(p, c, key);
      sums.store(p, c, key);
    }
  }

 private:
  static ATT_MEMBER constexpr int rounds(int columns) {
    return (Diagonals::blocks(columns) + 3) / 4;
  }
  // The number of the lane's diagonal of a round; beyond the last one that of the last.
  template <int kColumns>
  static ATT_MEMBER int bin_at(const Context& c, int key, int query, int round) {
    const int distance = Diagonals::distance(round);
    const int k = key + max_i32(distance, 0);
    const int q = query + min_i32(max_i32(-distance, 0), kColumns - 1);
    return static_cast<int>(grad_load_offset<kLoad>(c, q, k) - grad_load_base<kLoad>(c));
  }
  template <int kColumns>
  ATT_MEMBER void add_diagonals(const BackwardParams& p, const Context& c, int key, int query,
                                int n, const float (&value)[4]) {
    if (!diagonals.add(n, value, n + 1 == Diagonals::blocks(kColumns))) return;
    sums.add_each(WarpSums<kLoad>::destination(p, c, key), bin_at<kColumns>(c, key, query, n / 4),
                  diagonals.gathered);
  }
  // Brings what is open to the sums.
  ATT_MEMBER void close(const BackwardParams& p, const Context& c, int key) {
    float* const to = WarpSums<kLoad>::destination(p, c, key);
    if constexpr (kByElement) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums.add_each(to, bins[half], open[half]);
        open[half] = 0.0f;
      }
    } else {
      sums.add(to, bins[0], warp_sum(open[0]));
      open[0] = 0.0f;
      if constexpr (!WarpSums<kLoad>::kInRegisters) sync_warp();
    }
  }
};

// All look-ups from kLoad on.
template <int kLoad, bool kIsEnd>
struct LearnedLoads {
  LearnedLoad<kLoad> load;
  LearnedLoads<kLoad + 1, kLoad + 1 >= kGradLoads> others;

  template <int kColumns>
  ATT_MEMBER void begin_tile(const BackwardParams& p, const Context& c, int key, int query) {
    load.template begin_tile<kColumns>(p, c, key, query);
    others.template begin_tile<kColumns>(p, c, key, query);
  }
  ATT_MEMBER bool is_mixed() const { return load.is_mixed() || others.is_mixed(); }
  template <int kColumns, bool kMixed>
  ATT_MEMBER void add(const BackwardParams& p, const Context& c, int key, int query, int n,
                      const int (&q)[4], const float (&s)[4], const float (&d_score)[4]) {
    float value[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (kGradLoadIsOne[kLoad]) {
        value[e] = d_score[e];
      } else {
        const int k = key + lane_index() / 4 + e / 2 * 8;
        value[e] =
            d_score[e] == 0.0f ? 0.0f : d_score[e] * score_grad_load<kLoad>(c, s[e], q[e], k);
      }
    }
    load.template add<kColumns, kMixed>(p, c, key, query, n, q, value);
    others.template add<kColumns, kMixed>(p, c, key, query, n, q, s, d_score);
  }
  template <int kColumns>
  ATT_MEMBER void end_tile(const BackwardParams& p, const Context& c, int key, int query) {
    load.template end_tile<kColumns>(p, c, key, query);
    others.template end_tile<kColumns>(p, c, key, query);
  }
  ATT_MEMBER void end_head(const BackwardParams& p, const Context& c, int key) {
    load.end_head(p, c, key);
    others.end_head(p, c, key);
  }
};
template <int kLoad>
struct LearnedLoads<kLoad, true> {
  template <int kColumns>
  ATT_MEMBER void begin_tile(const BackwardParams&, const Context&, int, int) {}
  ATT_MEMBER bool is_mixed() const { return false; }
  template <int kColumns, bool kMixed>
  ATT_MEMBER void add(const BackwardParams&, const Context&, int, int, int, const int (&)[4],
                      const float (&)[4], const float (&)[4]) {}
  template <int kColumns>
  ATT_MEMBER void end_tile(const BackwardParams&, const Context&, int, int) {}
  ATT_MEMBER void end_head(const BackwardParams&, const Context&, int) {}
};

// A warp's part, of the 16 keys from `key` on. The whole warp calls everything.
struct LearnedGradients {
  static constexpr bool kLearns = kGradLoads > 0;
  const BackwardParams& p;
  const int key;
  const bool learns;
  int h = -1;  // whose sums these are
  LearnedLoads<0, kGradLoads == 0> loads;

  ATT_MEMBER LearnedGradients(const BackwardParams& p, int key, bool learns = true)
      : p(p), key(key), learns(learns) {}

  // Before the elements of a tile of kColumns queries from `query` on.
  template <int kColumns>
  ATT_MEMBER void begin_tile(const Context& c, int query) {
    if constexpr (kLearns) {
      if (!learns) return;
      if (h >= 0 && h != c.h) end(c);
      h = c.h;
      loads.template begin_tile<kColumns>(p, c, key, query);
    }
  }
  // Whether elements of the tile that share a number lie on diagonals.
  ATT_MEMBER bool is_mixed() const { return learns && loads.is_mixed(); }
  // The elements of block n: of key `key` + lane / 4 + 8 (e / 2) and query q[e] the scaled product,
  // and the gradient of what the score makes of it. Where the score is the product plus something,
  // the latter does not depend on the former.
  template <int kColumns, bool kMixed>
  ATT_MEMBER void add(const Context& c, int query, int n, const int (&q)[4], const float (&s)[4],
                      const float (&d_score)[4]) {
    if (learns) loads.template add<kColumns, kMixed>(p, c, key, query, n, q, s, d_score);
  }
  template <int kColumns>
  ATT_MEMBER void end_tile(const Context& c, int query) {
    if constexpr (kLearns) {
      if (learns) loads.template end_tile<kColumns>(p, c, key, query);
    }
  }
  // After the last tile, if there was one; c.h does not matter.
  ATT_MEMBER void end(const Context& c) {
    if constexpr (kLearns) {
      if (h < 0 || !learns) return;
      loads.end_head(p, context_of(c.params, sequence_of(c), c.b, h, c.h_kv), key);
    }
  }
};

}  // namespace att
