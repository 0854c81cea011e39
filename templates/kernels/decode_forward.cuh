// Attention forward for few queries on many keys (decoding): the decode family, mma.sync.
//
// What counts is that K and V are read once, at the speed of memory. All queries of the heads that
// share a K/V head are the rows of one item, and its keys are dealt out to `pieces` CTAs, within
// them to warps (Dao et al., "Flash-Decoding", 2023). Every warp goes its own way through its keys:
// it copies 16 or 32 of them at a time into a ring of buffers that is its own, so nothing but the
// copies is ever waited for. What the warps found is merged in shared memory; what the pieces
// found, by the CTA that arrives last, in the order of the pieces: the result does not depend on
// which one that is.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kThreads = 32 * plan::kWarps;
constexpr int kRows = plan::kTileQ;
constexpr int kBlocks = kRows / 16;
constexpr int kDimQk = padded_dim(spec::kHeadDimQk);
constexpr int kDimV = padded_dim(spec::kHeadDimV);

// Shared memory: of each warp kStages times (K, V); Q; what merging needs. In the end the warps'
// results take the place of the stages.
constexpr int kKBytes = plan::kStepKeys * kDimQk * 2;
constexpr int kStageBytes = plan::kStepKeys * (kDimQk + kDimV) * 2;
constexpr int kRingBytes = plan::kStages * kStageBytes;
constexpr int kPartStride = kDimV + 4;  // floats; rows fall into different banks
constexpr int kPartBytes = kRows * (kPartStride + 2) * 4;
constexpr int kQOffset = plan::kWarps * (kRingBytes > kPartBytes ? kRingBytes : kPartBytes);
constexpr int kMostParts = plan::kPieces > plan::kWarps ? plan::kPieces : plan::kWarps;
using ItemWeights = Weights<kMostParts, kRows>;
constexpr int kWeightsOffset = kQOffset + kRows * kDimQk * 2;
static_assert(kWeightsOffset + static_cast<int>(sizeof(ItemWeights)) <= plan::kSharedBytes);

// Of the 2 * kBlocks rows of a lane.
struct LaneRows {
  int h[kBlocks][2], q[kBlocks][2];

  // Rows behind the item's last one act as it: they read nothing out of bounds and are not stored.
  ATT_MEMBER explicit LaneRows(const Item& item) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = min_i32(16 * m + lane_index() / 4 + 8 * half, item.rows() - 1);
        h[m][half] = item.h0 + row / item.queries();
        q[m][half] = item.q0 + row % item.queries();
      }
    }
  }
};

// Starts the copy of the item's queries, rows behind the last as zeros.
ATT_FN void load_q(const ForwardParams& p, const Item& item, unsigned shared) {
  using Layout = RowLayout<kDimQk>;
#pragma unroll 1
  for (int i = thread_index(); i < kRows * Layout::kUnits; i += kThreads) {
    const int row = i / Layout::kUnits, unit = i % Layout::kUnits;
    const bool valid = row < item.rows() && unit * 8 < spec::kHeadDimQk;
    const int h = valid ? item.h0 + row / item.queries() : item.h0;
    const int q = valid ? item.q0 + row % item.queries() : item.q0;
    cp_async_16_or_zero(shared + Layout::offset(row, unit),
                        static_cast<const char*>(p.q) +
                            2 * (query_offset(item.sequence, p.q_stride, h, q) + unit * 8),
                        valid);
  }
}

// What a warp found.
struct WarpPart {
  const ForwardParams& p;
  const Item& item;
  LaneRows lane_rows;
  unsigned q_registers[kBlocks][kDimQk / 16][4];
  float o[kBlocks][kDimV / 8][4];
  RowState<kBlocks> rows;

  ATT_MEMBER WarpPart(const ForwardParams& params, const Item& of)
      : p(params), item(of), lane_rows(of) {
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

  ATT_MEMBER void keep_q(unsigned shared) {
    using Layout = RowLayout<kDimQk>;
    const int lane = lane_index();
    const unsigned address = shared + Layout::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int k = 0; k < kDimQk / 16; ++k) {
        ldmatrix_x4(q_registers[m][k], Layout::step(address, 2 * k) + m * 16 * Layout::kRowBytes);
      }
    }
  }

  // Calls f(context, first query, m, half) of each of the lane's rows.
  template <typename F>
  ATT_MEMBER void for_each_row(const F& f) const {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Context c = context_of(p, item, lane_rows.h[m][half]);
        f(c, lane_rows.q[m][half], m, half);
      }
    }
  }

  // kStepKeys keys from k0 on, whose K and V lie at `stage`.
  ATT_MEMBER void visit(unsigned stage, int k0, bool partial) {
    constexpr int kTiles = plan::kStepKeys / 8;
    const int lane = lane_index();
    float s[kBlocks][kTiles][4];
    const auto fragment = [&](unsigned(&a)[4], int m, int k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q_registers[m][k][i];
    };
    product_qk<kBlocks, plan::kStepKeys, kDimQk, kDimQk / 16>(
        s, fragment, stage + RowLayout<kDimQk>::offset(across_row(lane), across_unit(lane)));
    const int first_key = k0 + lane % 4 * 2;
    if constexpr (!kFoldScale) {
      const float scale = spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
      for_each_row([&](const Context& c, int q, int m, int half) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * half + e];
            x = modified_score(c, x, scale, q, first_key + 8 * n + e);
          }
        }
      });
    }
    if (partial) {
      for_each_row([&](const Context& c, int q, int m, int half) {
        const RowMask row = row_mask(c, q, first_key);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * half + e];
            x = is_live(c, row, 8 * n + e) ? x : -infinity();
          }
        }
      });
    }
    rows.raise(s, o, 0.0f);
    rows.exponentiate(s);
    const unsigned v = stage + kKBytes + RowLayout<kDimV>::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int j = 0; j < plan::kStepKeys / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const float(&left)[4] = s[m][2 * j];
        const float(&right)[4] = s[m][2 * j + 1];
        a[m][0] = pack_2<spec::kDType>(left[0], left[1]);
        a[m][1] = pack_2<spec::kDType>(left[2], left[3]);
        a[m][2] = pack_2<spec::kDType>(right[0], right[1]);
        a[m][3] = pack_2<spec::kDType>(right[2], right[3]);
      }
      product_pv<kBlocks, kDimV>(o, a, v + 16 * j * RowLayout<kDimV>::kRowBytes);
    }
  }

  ATT_MEMBER void store(const Parts<kRows, kPartStride>& parts) const {
    const int lane = lane_index();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + lane / 4 + 8 * half;
        const float sum = quad_sum(rows.sum[m][half]);
        if (row >= item.rows()) continue;
        float* const to = parts.output(warp_index(), row) + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n) {
          to[8 * n] = o[m][n][2 * half];
          to[8 * n + 1] = o[m][n][2 * half + 1];
        }
        if (lane % 4 == 0) {
          parts.statistic(warp_index(), row)[0] = rows.reference[m][half];
          parts.statistic(warp_index(), row)[1] = sum;
        }
      }
    }
  }
};

// Calls f(row, column) of every fourth column of the item's rows, each from one thread.
template <typename F>
ATT_FN void for_each_four_columns(const Item& item, const F& f) {
  constexpr int kFours = spec::kHeadDimV / 4;
#pragma unroll 1
  for (int i = thread_index(); i < item.rows() * kFours; i += kThreads) {
    f(i / kFours, i % kFours * 4);
  }
}

// The item's O and LSE from its parts.
template <int kStride>
ATT_FN void write_output(const ForwardParams& p, const Item& item,
                         const Parts<kRows, kStride>& parts, const ItemWeights& weights) {
  for_each_four_columns(item, [&](int row, int column) {
    const FourFloats o = merge(parts, weights, row, column);
    float reference = weights.reference[row], sum = weights.sum[row];
    const int h = item.h0 + row / item.queries();
    const int q = item.q0 + row % item.queries();
    const float factor = finish_row(context_of(p, item, h), reference, sum);
    unsigned* const to = reinterpret_cast<unsigned*>(
        static_cast<char*>(p.o) + 2 * (query_offset(item.sequence, p.o_stride, h, q) + column));
    to[0] = pack_2<spec::kDType>(o.x[0] * factor, o.x[1] * factor);
    to[1] = pack_2<spec::kDType>(o.x[2] * factor, o.x[3] * factor);
    if (p.lse != nullptr && column == 0) {
      p.lse[statistic_offset(p, item.sequence, h) + q] = log_sum_exp(reference, sum);
    }
  });
}

ATT_KERNEL __launch_bounds__(kThreads, plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ UnitTable table;
  __shared__ bool is_last;
  const unsigned shared = shared_address(shared_memory);

  const PieceOfItem own = piece_at(params, block_index());
  const Item& item = own.item;
  if (item.rows() <= 0) return;
  const Sequence& sequence = item.sequence;

  load_q(params, item, shared + kQOffset);
  cp_async_commit();
  const Units units = units_of<plan::kWarps>(params, item, own.piece, own.pieces, table);

  const unsigned ring = shared + warp_index() * kRingBytes;
  const int unit_shift = highest_bit(units.keys / plan::kStepKeys);
  const int steps = units.count << unit_shift;
  // The keys of a step.
  const auto keys_at = [&](int step) {
    const Unit unit = unit_at(units, table, step >> unit_shift, sequence.kv_len);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * plan::kStepKeys, unit.full};
  };
  const auto load = [&](int step, int stage) {
    if (step < steps) {
      const int k0 = keys_at(step).k0;
      const int valid = sequence.kv_len - k0;
      const unsigned to = ring + stage * kStageBytes;
      const auto rows = [&](const void* tensor, const Strides& stride) {
        return static_cast<const char*>(tensor) + 2 * key_offset(sequence, stride, item.h_kv, k0);
      };
      load_rows<plan::kStepKeys, spec::kHeadDimQk, 32>(
          to, rows(params.k, params.k_stride), params.k_stride.seq * 2, valid, lane_index());
      load_rows<plan::kStepKeys, spec::kHeadDimV, 32>(to + kKBytes, rows(params.v, params.v_stride),
                                                      params.v_stride.seq * 2, valid, lane_index());
    }
    cp_async_commit();
  };
  // The same in two steps of paged keys: where they lie is looked up some time before it is needed.
  using Pages = PageSteps<plan::kStepKeys>;
  const auto look_up = [&](Pages& pages, int step) {
    if (step >= steps) return;
    pages.look_up({page_table_of(params), item.b, item.h_kv, sequence.kv_len}, keys_at(step).k0);
  };
  const auto load_pages = [&](const Pages& pages, int step, int stage) {
    if (step < steps) {
      const PagedSequence from = {page_table_of(params), item.b, item.h_kv, sequence.kv_len};
      const int k0 = keys_at(step).k0;
      const unsigned to = ring + stage * kStageBytes;
      pages.load<spec::kHeadDimQk>(to, params.k, params.k_stride, from, k0);
      pages.load<spec::kHeadDimV>(to + kKBytes, params.v, params.v_stride, from, k0);
    }
    cp_async_commit();
  };

  int step = warp_index();
  [[maybe_unused]] Pages next;
  if constexpr (spec::kIsPaged) {
    Pages first[plan::kStages - 1];
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) look_up(first[i], step + i * plan::kWarps);
    look_up(next, step + (plan::kStages - 1) * plan::kWarps);
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) load_pages(first[i], step + i * plan::kWarps, i);
  } else {
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) load(step + i * plan::kWarps, i);
  }
  cp_async_wait<plan::kStages - 1>();
  sync_threads();
  WarpPart part(params, item);
  part.keep_q(shared + kQOffset);
  int stage = 0;
#pragma unroll 1
  for (; step < steps; step += plan::kWarps) {
    cp_async_wait<plan::kStages - 2>();
    sync_warp();  // this step's keys have come for all lanes, and all have left the stage before
    if constexpr (spec::kIsPaged) {
      load_pages(next, step + (plan::kStages - 1) * plan::kWarps,
                 stage == 0 ? plan::kStages - 1 : stage - 1);
      look_up(next, step + plan::kStages * plan::kWarps);
    } else {
      load(step + (plan::kStages - 1) * plan::kWarps, stage == 0 ? plan::kStages - 1 : stage - 1);
    }
    const Unit keys = keys_at(step);
    part.visit(ring + stage * kStageBytes, keys.k0, !keys.full);
    stage = stage + 1 == plan::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  sync_threads();  // the rings are free

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  ItemWeights& weights = *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset);
  const Parts<kRows, kPartStride> warps = {outputs, outputs + plan::kWarps * kRows * kPartStride,
                                           plan::kWarps};
  part.store(warps);
  sync_threads();
  weigh<plan::kWarps>(warps, item.rows(), weights);
  if (own.pieces == 1) {
    write_output(params, item, warps, weights);
    return;
  }

  float* const results = params.pieces.rows;
  constexpr int kStride = spec::kHeadDimV;
  const long long first_row = static_cast<long long>(own.result - own.piece) * kRows;
  const long long all_rows = static_cast<long long>(own.all_results) * kRows;
  const Parts<kRows, kStride> found = {results + first_row * kStride,
                                       results + all_rows * kStride + 2 * first_row, own.pieces};
  for_each_four_columns(item, [&](int row, int column) {
    *reinterpret_cast<FourFloats*>(found.output(own.piece, row) + column) =
        merge(warps, weights, row, column);
    if (column == 0) {
      found.statistic(own.piece, row)[0] = weights.reference[row];
      found.statistic(own.piece, row)[1] = weights.sum[row];
    }
  });
  sync_threads();
  if (thread_index() == 0) {
    is_last = arrive(params.pieces.arrivals + own.arrivals) == own.pieces - 1;
  }
  sync_threads();
  if (!is_last) return;
  weigh<plan::kWarps>(found, item.rows(), weights);
  write_output(params, item, found, weights);
}

}  // namespace att
