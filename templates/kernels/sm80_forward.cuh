// Attention forward on mma.sync: the sm80 family.
//
// FlashAttention-2's split-Q scheme (Dao 2023): a CTA takes kTileQ queries of one (batch, head),
// each warp 16 or 32 of them, and walks the live kv tiles, which cp.async brings through a ring of
// kStages buffers in shared memory. Scores and P never leave registers. Where warps are more than
// rows, several have the same 16, each its share of a tile's keys (key_groups.cuh).
//
// Frozen maximum: exp2(s - m) needs no maximum m, only one that keeps it in range. Once a row has
// met a live key its reference stays, and what follows needs no maxima, no shuffles, no rescaling,
// and no order between chunks of keys. Sums that grow large move their references up after a tile.
// A sum beyond kFrozenLimit or an O that is not finite says that one tile rose too far for that.
// Then the warp forgets what it has and goes on with a running maximum, at first one that follows
// only what is far above it; the tiles that it lacks are visited again in another pass.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/elements.cuh"
#include "templates/tile/key_groups.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/operands.cuh"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/sm80_logistic.cuh"
#include "templates/tile/softmax.cuh"
#include "templates/tile/tile_walk.cuh"
#include "templates/work_items.h"

namespace att {

constexpr int kThreads = 32 * plan::kWarps;
constexpr int kWarpRows = plan::kTileQ >= 16 * plan::kWarps ? plan::kTileQ / plan::kWarps : 16;
constexpr int kBlocks = kWarpRows / 16;
// Warps that have the same rows, each a part of every kv tile.
constexpr int kKeyGroups = kWarpRows * plan::kWarps / plan::kTileQ;
constexpr int kRowGroups = plan::kWarps / kKeyGroups;
constexpr int kOwnKeys = plan::kTileKv / kKeyGroups;
constexpr int kDimQk = padded_dim(spec::kHeadDimQk);
constexpr int kDimV = padded_dim(spec::kHeadDimV);
using RowsQk = Element::Rows<kDimQk>;
using RowsV = Element::Rows<kDimV>;

// Shared memory: kStages times (K tile, V tile), and Q. Q that moves to registers lies in the last
// stage, which is the last to be filled. In the end O takes it all,
// and behind it what groups of warps with other keys have found.
constexpr int kKBytes = plan::kTileKv * RowsQk::kRowBytes;
constexpr int kStageBytes = plan::kTileKv * (RowsQk::kRowBytes + RowsV::kRowBytes);
constexpr int kOBytes = plan::kTileQ * RowsV::kRowBytes;
constexpr int kQOffset = (plan::kQInRegisters ? plan::kStages - 1 : plan::kStages) * kStageBytes;
static_assert(plan::kStages * kStageBytes <= plan::kSharedBytes);
static_assert(kQOffset + plan::kTileQ * RowsQk::kRowBytes <= plan::kSharedBytes);
static_assert(kOBytes + (kKeyGroups - 1) * kRowGroups * WarpPart<kBlocks, kDimV / 8>::kBytes <=
              plan::kSharedBytes);

constexpr int kQSteps = kDimQk / Operand::kDepth;  // of Q K^T

// Keys whose scores are in registers at a time while the maximum runs: as many as O and Q leave
// room for, beside the other loop where there is one.
constexpr int kHeldRegisters = kBlocks * (kDimV / 2 + (plan::kQInRegisters ? kQSteps * 4 : 0));
constexpr int kWantedChunk = kHeldRegisters <= 64 && kOwnKeys % 64 == 0                       ? 64
                             : kHeldRegisters < 128 || !plan::kFrozenMax || spec::kHasDropout ? 32
                             : kHeldRegisters == 128 ? plan::kChunk
                                                     : 16;
constexpr int kMostKeys = kOwnKeys < Operand::kLongestChunk ? kOwnKeys : Operand::kLongestChunk;
constexpr int kOnlineChunk = kWantedChunk < kMostKeys ? kWantedChunk : kMostKeys;
// Steps of Q K^T in one loop body. ptxas moves every ldmatrix it sees to the front, and at d 128
// eight steps' fragments beside O and a mask do not fit: 40 to 100 bytes of spills.
constexpr int kOnlineUnroll = plan::kQInRegisters ? kQSteps : 2;
constexpr int kFrozenUnroll = plan::kQInRegisters ? kQSteps
                              : spec::kHasScore || spec::kHasDropout || plan::kChunk == 64
                                  ? 2
                                  : Operand::kStepsAtOnce;

// Which rows of the q tile a warp has, and which keys of each kv tile, in units of what a warp has.
ATT_FN int row_group() {
  if constexpr (kKeyGroups > 1) return warp_index() % kRowGroups;
  return warp_index();
}
ATT_FN int key_group() {
  if constexpr (kKeyGroups > 1) return warp_index() / kRowGroups;
  return 0;
}

// fp32's products take so long that it does not show when K and V come from memory again.
constexpr bool kLongestFirst = spec::kHasMask && spec::kDType == DType::f32;

// What a CTA works on.
struct WorkItem {
  int b, h, q0;

  ATT_MEMBER WorkItem(const ForwardParams& params, int block) {
    if constexpr (spec::kIsPacked) {
      // All heads of an item of the list follow one another.
      const SequenceItem listed =
          static_cast<const PackedParams&>(params).sequences.items[block / params.heads];
      b = listed.sequence;
      h = block % params.heads;
      q0 = listed.tile * plan::kTileQ;
      return;
    }
    const int tiles = tile_count(params.q_len, plan::kTileQ);
    const auto [head, tile] = kLongestFirst
                                  ? tile_by_length(block, tiles, params.batch * params.heads)
                                  : tile_by_head(block, tiles);
    q0 = tile * plan::kTileQ;
    b = head / params.heads;
    h = head % params.heads;
  }
};

// One warp's share of a q tile.
struct WarpTile {
  const Context& c;
  int q0;                       // of this warp's first row
  unsigned q_address;           // ldmatrix addresses of this lane
  unsigned k_offset, v_offset;  // the same, relative to a stage
  unsigned q_registers[plan::kQInRegisters ? kBlocks : 1][plan::kQInRegisters ? kQSteps : 1][4];
  float o[kBlocks][kDimV / 8][4];
  RowState<kBlocks> rows;

  ATT_MEMBER WarpTile(const Context& context, int first_row, unsigned shared) : c(context) {
    const int lane = lane_index();
    const int row = row_group() * kWarpRows;
    q0 = first_row + row;
    q_address = shared + kQOffset + RowsQk::offset(row + down_row(lane), down_unit(lane));
    k_offset = shared + RowsQk::offset(across_row(lane), across_unit(lane));
    v_offset = shared + kKBytes + Operand::Summed<kDimV>::offset(down_row(lane), down_unit(lane));
  }

  ATT_MEMBER void clear() {
    rows.clear();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
      }
    }
  }

  static ATT_MEMBER void read_q(unsigned (&a)[4], unsigned address, int m, int k) {
    ldmatrix_x4(a, RowsQk::step(address, 2 * k) + m * 16 * RowsQk::kRowBytes);
  }

  ATT_MEMBER void keep_q() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int k = 0; k < kQSteps; ++k) read_q(q_registers[m][k], q_address, m, k);
    }
  }

  template <int kKeys, int kQkUnroll>
  ATT_MEMBER void multiply_qk(float (&s)[kBlocks][kKeys / 8][4], int stage, int key) const {
    const unsigned q = opaque(q_address);
    const auto fragment = [&](unsigned(&a)[4], int m, int k) {
      if constexpr (plan::kQInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q_registers[m][k][i];
      } else {
        read_q(a, q, m, k);
      }
    };
    Operand::multiply<kBlocks, kKeys, kDimQk, kQkUnroll>(
        s, fragment, k_offset + stage * kStageBytes + key * RowsQk::kRowBytes);
  }

  // Scores of the keys from `key` of the stage on, k0 being the first one's index. `partial` is the
  // same for the whole warp.
  template <int kKeys, int kQkUnroll>
  ATT_MEMBER void scores(float (&s)[kBlocks][kKeys / 8][4], int stage, int key, int k0,
                         bool partial) const {
    LiveElements<kBlocks, kKeys / 8> live;
    if (partial) live.find(c, q0, k0);
    multiply_qk<kKeys, kQkUnroll>(s, stage, key);
    apply_score(s, c, q0, k0);
    if (partial) live.apply(s, c, q0, k0);
  }

  // O += dropout(P) V for the keys from `key` of the stage on; k0 is the first one's index.
  template <int kKeys, bool kFinite>
  ATT_MEMBER void accumulate(float (&s)[kBlocks][kKeys / 8][4], int stage, int key, int k0) {
    Operand::add_values<kFinite, kBlocks, kKeys, kDimV>(o, s, c, q0, k0, [&](int i) {
      return v_offset + stage * kStageBytes + (key + i) * RowsV::kRowBytes;
    });
  }

  // A kv tile with the running maximum, `offset` above which the references lie, but for `slack`.
  ATT_MEMBER void visit_online(int stage, int k0, bool partial, float offset, float slack) {
#pragma unroll 1
    for (int own = 0; own < kOwnKeys; own += kOnlineChunk) {
      const int key = key_group() * kOwnKeys + own;
      float s[kBlocks][kOnlineChunk / 8][4];
      scores<kOnlineChunk, kOnlineUnroll>(s, stage, key, k0 + key, partial);
      float highest[kBlocks][2];
      rows.template find_highest<true>(s, highest);
      rows.raise_to(highest, o, offset, slack);
      if (!rows.are_negligible(highest, offset)) {
        rows.exponentiate(s);
        accumulate<kOnlineChunk, false>(s, stage, key, k0 + key);
      }
    }
  }

  // A kv tile with the references as they are, kUnroll chunks in a loop body. True when they were
  // too far below its scores.
  template <int kUnroll>
  ATT_MEMBER bool visit_frozen(int stage, int k0, bool partial) {
#pragma unroll kUnroll
    for (int own = 0; own < kOwnKeys; own += plan::kChunk) {
      const int key = key_group() * kOwnKeys + own;
      float s[kBlocks][plan::kChunk / 8][4];
      if constexpr (kSharesReciprocals) {
        LiveElements<kBlocks, plan::kChunk / 8> live;
        if (partial) live.find(c, q0, k0 + key);
        multiply_qk<plan::kChunk, kFrozenUnroll>(s, stage, key);
        to_denominators(s, c);
        if (partial) live.apply(s, c, q0, k0 + key, kDeadDenominator);
        exponentiate_inverses(rows, s);
      } else {
        scores<plan::kChunk, kFrozenUnroll>(s, stage, key, k0 + key, partial);
        rows.exponentiate(s);
      }
      accumulate<plan::kChunk, true>(s, stage, key, k0 + key);
    }
    return rows.recentre(o);
  }

  ATT_MEMBER bool in_range() const {
    float product = 0.0f;  // NaN as soon as an element is not finite
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) product += o[m][n][e] * 0.0f;
      }
    }
    return product == 0.0f && rows.in_range();
  }

  // Writes O and LSE. `shared` is free for this warp's rows.
  ATT_MEMBER void store(unsigned shared) {
    // Where it goes is worked out anew: kept from the start, it costs the loop eight registers.
    const ForwardParams& params = c.params;
    const WorkItem item(params, opaque(block_index()));
    const int lane = lane_index();
    const int row0 = row_group() * kWarpRows;
    const Sequence sequence = sequence_at(c, item.b);
    const int live_rows = min_i32(kWarpRows, sequence.q_len - item.q0 - row0);
    float factor[kBlocks][2];
    rows.finish(c, factor);
    float* const lse = params.lse + lse_offset(params, sequence, item.h, item.q0 + row0);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + lane / 4 + 8 * half;
        float scale = factor[m][half];
        if constexpr (spec::kHasDropout) scale *= dropout_keep_scale(c);
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n) {
          Element::store_pair<kDimV>(shared, row0 + row, n, lane, o[m][n][2 * half] * scale,
                                     o[m][n][2 * half + 1] * scale);
        }
        if (params.lse != nullptr && lane % 4 == 0 && row < live_rows) {
          lse[row * spec::kResidues] = rows.log_sum_exp(m, half);
        }
      }
    }
    sync_warp();
    char* const out =
        static_cast<char*>(params.o) +
        Element::kBytes * query_offset(sequence, params.o_stride, item.h, item.q0 + row0);
    constexpr int kUnits = spec::kHeadDimV / Element::kOfUnit;
#pragma unroll 4
    for (int first = 0; first < kWarpRows * kUnits; first += 32) {
      const int row = (first + lane) / kUnits;
      const int unit = (first + lane) % kUnits;
      if (row < live_rows) {
        copy_shared_to_global_16(out + row * params.o_stride.seq * Element::kBytes + unit * 16,
                                 shared + RowsV::offset(row0 + row, unit));
      }
    }
  }
};

// How a warp's references come about: they freeze once every row has one; they run, but for
// kRunningSlack; they follow every maximum.
enum class Way { freezes, runs, follows };

// Whether a warp that fails goes on at once. fp32 has no registers for it above head dim 128.
constexpr bool kGoesOn = spec::kDType != DType::f32 || kHeldRegisters < 128;

constexpr int kNothing = 0x7fffffff;  // more than any tile's number

// The least of all warps' values; `shared` is free for a word of each.
ATT_FN int lowest_of_warps(unsigned shared, int value) {
  store_shared_4(shared + 4 * warp_index(), static_cast<unsigned>(value));
  sync_threads();
  const unsigned of_lane = load_shared_4(shared + 4 * (lane_index() % plan::kWarps));
  sync_threads();
  return static_cast<int>(least_of_lanes(of_lane));
}

ATT_KERNEL __launch_bounds__(kThreads, plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT KernelParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = shared_address(shared_memory);

  const WorkItem item(params, block_index());
  if (spec::kIsPacked && item.b < 0) return;
  const int q0 = item.q0;
  const Sequence own = sequence_of(params, item.b);
  const int q1 = min_i32(q0 + plan::kTileQ, own.q_len);
  // The lengths may have changed since they were listed.
  if (spec::kIsPacked && q0 >= q1) return;
  const Context c =
      context_of(params, own, item.b, item.h, item.h / (params.heads / params.kv_heads));

  const char* const q = static_cast<const char*>(params.q) +
                        Element::kBytes * query_offset(own, params.q_stride, item.h, q0);
  const auto load_kv = [&](int tile, int stage) {
    if (tile >= 0) {
      // From the start each time: two pointers kept through the loop are four registers too many.
      const Sequence sequence = sequence_at(c, opaque(c.b));
      const int tile_h = opaque(c.h_kv);
      const int k0 = tile / 2 * plan::kTileKv;
      const int valid = sequence.kv_len - k0;
      const unsigned to = shared + stage * kStageBytes;
      if constexpr (spec::kIsPaged) {
        const PagedSequence from = {page_table_of(params), c.b, tile_h, sequence.kv_len};
        load_paged_rows<plan::kTileKv, spec::kHeadDimQk, kThreads>(to, params.k, params.k_stride,
                                                                   from, k0);
        load_paged_rows<plan::kTileKv, spec::kHeadDimV, kThreads>(to + kKBytes, params.v,
                                                                  params.v_stride, from, k0);
      } else {
        const auto rows = [&](const void* tensor, const Strides& stride) {
          return static_cast<const char*>(tensor) +
                 Element::kBytes * key_offset(sequence, stride, tile_h, k0);
        };
        load_rows<plan::kTileKv, spec::kHeadDimQk, kThreads>(
            to, rows(params.k, params.k_stride), params.k_stride.seq * Element::kBytes, valid);
        load_rows<plan::kTileKv, spec::kHeadDimV, kThreads>(
            to + kKBytes, rows(params.v, params.v_stride), params.v_stride.seq * Element::kBytes,
            valid);
      }
    }
    cp_async_commit();
  };

  load_rows<plan::kTileQ, spec::kHeadDimQk, kThreads>(
      shared + kQOffset, q, params.q_stride.seq * Element::kBytes, q1 - q0);
  WarpTile warp(c, q0, shared);
  warp.clear();
  // Of the whole warp, as ptxas can see: it guards all branches of a loop in which some lanes may
  // part from others, which costs 1 to 4 %.
  bool frozen = false;
  Way way = plan::kFrozenMax ? Way::freezes : Way::follows;
  int missed = kNothing;  // it lacks the tiles from this one up
  bool first_pass = true;
  int lowest = 0;  // of the tiles that any warp lacks
  while (true) {
    TileWalk<plan::kTileKv> walk(c, q0, q1);
    walk.first = max_i32(walk.first, lowest);
    int pending[plan::kStages - 1];  // tiles on their way, the next to be used first
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) {
      pending[i] = walk.next(c, q0, q1);
      load_kv(pending[i], i);
    }
    if (plan::kQInRegisters && first_pass) {
      cp_async_wait<plan::kStages - 2>();
      sync_threads();
      warp.keep_q();
    }
    int stage = 0;
    bool lost = false;
    while (pending[0] != walk.kEnd) {
      const int tile = pending[0];
#pragma unroll
      for (int i = 0; i + 2 < plan::kStages; ++i) pending[i] = pending[i + 1];
      cp_async_wait<plan::kStages - 2>();
      sync_threads();  // this tile has come for all, and all have left the stage filled next
      pending[plan::kStages - 2] = walk.next(c, q0, q1);
      load_kv(pending[plan::kStages - 2], stage == 0 ? plan::kStages - 1 : stage - 1);

      const bool full = tile % 2 != 0;
      const int k0 = tile / 2 * plan::kTileKv;
      // One loop for full and partial tiles where its body is one chunk, which spares registers; a
      // longer one is for full tiles alone, as a branch between one chunk's PV and the next one's
      // QK keeps ptxas from running them together: 8 % at d 64.
      if (!kGoesOn && lost) {
        // Nothing more is wanted of this pass.
      } else if (frozen && (plan::kUnroll == 1 || full)) {
        lost = warp.visit_frozen<plan::kUnroll>(stage, k0, plan::kUnroll == 1 && !full);
      } else if (frozen && spec::kHasMask) {
        lost = warp.visit_frozen<1>(stage, k0, true);
      }
      if (kGoesOn && lost) {
        // This tile is visited at once: what rose may outweigh all that is to come.
        warp.clear();
        way = Way::runs;
        missed = (tile | 1) + 1;
        lost = frozen = false;
      }
      if (!frozen && (first_pass || tile >= missed)) {
        // Kept through the branch above, its place and class would cost two registers.
        const int own = opaque(tile);
        warp.visit_online(stage, own / 2 * plan::kTileKv, own % 2 == 0,
                          plan::kFrozenMax ? kFrozenOffset : 0.0f,
                          way == Way::runs ? kRunningSlack : 0.0f);
        frozen = plan::kFrozenMax && way == Way::freezes && warp.rows.has_reference();
        if (frozen && warp.rows.are_unlike()) {
          way = Way::runs;
          frozen = false;
        }
      }
      stage = stage + 1 == plan::kStages ? 0 : stage + 1;
    }
    const bool may_fail = frozen || (way == Way::runs && kRunningSlack > 0.0f);
    if (lost || (may_fail && !all_lanes(warp.in_range()))) {
      warp.clear();
      way = frozen ? Way::runs : Way::follows;
      missed = 0;
    } else if (!first_pass) {
      missed = kNothing;
    }
    frozen = false;
    // Also what makes the stages free for O.
    if (!sync_threads_or(missed != kNothing)) break;
    lowest = lowest_of_warps(shared, missed) / 2;
    first_pass = false;
  }
  if constexpr (kKeyGroups > 1) {
    merge_key_groups<kKeyGroups, kRowGroups>(shared + kOBytes, key_group(), row_group(), warp.rows,
                                             warp.o);
    if (key_group() > 0) return;
  }
  warp.store(shared);
}

}  // namespace att
