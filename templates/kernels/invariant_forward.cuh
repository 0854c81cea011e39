// Attention forward where a row's bits must not depend on what else is in the launch: the decode
// family's kernel of batch-invariant specs, mma.sync.
//
// As templates/kernels/decode_forward.cuh, but keys are added up in a fixed order
// (templates/tile/fixed_order.cuh): each warp has a chain of every piece. Whether a piece has a CTA
// of its own, or one CTA goes through all of them, the additions are the same, and those of
// templates/kernels/sm90_invariant_forward.cuh, which is for many queries.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/decode_warp.cuh"
#include "templates/tile/fixed_pieces.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/piece_arrivals.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

constexpr int kQOffset = plan::kWarps * (kRingBytes > kPartBytes ? kRingBytes : kPartBytes);
constexpr int kFoldedOffset = kQOffset + kRows * kDimQk * 2;
static_assert(kFoldedOffset + kRows * kFoursOfRow * static_cast<int>(sizeof(Folded)) <=
              plan::kSharedBytes);

ATT_FN void write_output(const ForwardParams& p, const Item& item, int row, int column,
                         const Folded& of) {
  write_columns(p, item, row, column, of.columns(), of.reference, of.sum);
}

ATT_KERNEL __launch_bounds__(kThreads, plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ bool is_last;
  const unsigned shared = shared_address(shared_memory);

  if constexpr (spec::kIsPacked) wait_for_launches_before();
  const PieceOfItem own = fixed_piece_at(params, block_index());
  const Item& item = own.item;
  if (item.rows() <= 0) return;
  const Sequence& sequence = item.sequence;
  const bool has_all = own.pieces == 1;

  load_q<kDimQk>(params, item, shared + kQOffset);
  cp_async_commit();
  Item judged = item;  // one head speaks for all where the mask does not tell them apart
  if (!plan::kMaskReadsHead) judged.h1 = judged.h0 + 1;
  const KvBounds bounds = bounds_of(params, judged);

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  Folded* const folded = reinterpret_cast<Folded*>(shared_memory + kFoldedOffset);
  const Parts<kRows, kPartStride> chains = {outputs, outputs + plan::kWarps * kRows * kPartStride,
                                            plan::kWarps};
  if (has_all) {
    for_each_four_columns(
        item, [&](int row, int column) { folded[row * kFoursOfRow + column / 4] = Folded{}; });
  }

  const unsigned ring = shared + warp_index() * kRingBytes;
  const auto first_key = [&](int step) { return step & -plan::kStepKeys; };
  using Pages = PageSteps<plan::kStepKeys>;
  const auto look_up = [&](Pages& pages, int step) {
    if constexpr (spec::kIsPaged) {
      if (step < 0) return;
      pages.look_up({page_table_of(params), item.b, item.h_kv, sequence.kv_len}, first_key(step));
    }
  };
  const auto load = [&](const Pages& pages, int step, int stage) {
    if (step >= 0) {
      const int k0 = first_key(step);
      const unsigned to = ring + stage * kStageBytes;
      if constexpr (spec::kIsPaged) {
        const PagedSequence from = {page_table_of(params), item.b, item.h_kv, sequence.kv_len};
        pages.load<spec::kHeadDimQk>(to, params.k, params.k_stride, from, k0);
        pages.load<spec::kHeadDimV>(to + kKBytes, params.v, params.v_stride, from, k0);
      } else {
        const int valid = sequence.kv_len - k0;
        const auto rows = [&](const void* tensor, const Strides& stride) {
          return static_cast<const char*>(tensor) + 2 * key_offset(sequence, stride, item.h_kv, k0);
        };
        load_rows<plan::kStepKeys, spec::kHeadDimQk, 32>(
            to, rows(params.k, params.k_stride), params.k_stride.seq * 2, valid, lane_index());
        load_rows<plan::kStepKeys, spec::kHeadDimV, 32>(
            to + kKBytes, rows(params.v, params.v_stride), params.v_stride.seq * 2, valid,
            lane_index());
      }
    }
    cp_async_commit();
  };

  const PieceRange range = has_all ? pieces_of(bounds) : PieceRange{own.piece, own.piece};
#pragma unroll 1
  for (int piece = range.first; piece <= range.last; ++piece) {
    StepWalk walk(params, judged, bounds, piece);
    constexpr int kAhead = plan::kStages - 1;
    int steps[kAhead];  // whose copies are on their way, the oldest first
    Pages pages[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      steps[i] = walk.advance();
      look_up(pages[i], steps[i]);
    }
    int next = walk.advance();
    Pages next_pages;
    look_up(next_pages, next);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(pages[i], steps[i], i);
    expect_arrivals(params, own);
    cp_async_wait<kAhead>();
    sync_threads();
    WarpPart part(params, item);
    part.queries.keep(shared + kQOffset);
    int stage = 0;
#pragma unroll 1
    while (steps[0] >= 0) {
      cp_async_wait<kAhead - 1>();
      sync_warp();  // this step's keys have come for all lanes, and all have left the stage before
      load(next_pages, next, stage == 0 ? kAhead : stage - 1);
      const int now = steps[0];
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) steps[i] = steps[i + 1];
      steps[kAhead - 1] = next;
      next = walk.advance();
      look_up(next_pages, next);
      part.visit<FixedArithmetic>(ring + stage * kStageBytes, first_key(now), now % 2 == 0);
      stage = stage == kAhead ? 0 : stage + 1;
    }
    cp_async_wait<0>();
    sync_threads();  // the rings are free
    part.store(chains);
    sync_threads();
    if (!has_all) break;
    for_each_four_columns(item, [&](int row, int column) {
      const Folded of_piece = fold_chains(chains, row, column);
      folded[row * kFoursOfRow + column / 4].fold(of_piece.reference, of_piece.sum,
                                                  of_piece.columns());
    });
    sync_threads();  // the next piece's keys take the place of the results
  }

  cp_async_wait<0>();  // of queries that met no key

  Parts<kRows, spec::kHeadDimV> found = {};
  if (!has_all) {
    float* const results = params.pieces.rows;
    constexpr int kStride = spec::kHeadDimV;
    const long long first_row = static_cast<long long>(own.result - own.piece) * kRows;
    const long long all_rows = static_cast<long long>(own.all_results) * kRows;
    found = {results + first_row * kStride, results + all_rows * kStride + 2 * first_row,
             own.pieces};
    for_each_four_columns(item, [&](int row, int column) {
      const Folded of_piece = fold_chains(chains, row, column);
      store_result(found.output(own.piece, row) + column, of_piece.columns());
      if (column == 0) {
        found.statistic(own.piece, row)[0] = of_piece.reference;
        found.statistic(own.piece, row)[1] = of_piece.sum;
      }
    });
    sync_threads();
    if (thread_index() == 0) {
      is_last = arrives_last(counter_of(params, own), own.pieces);
    }
    sync_threads();
    if (!is_last) return;
  }
  for_each_four_columns(item, [&](int row, int column) {
    Folded all;
    if (has_all) {
      all = folded[row * kFoursOfRow + column / 4];
    } else {
#pragma unroll 4
      for (int piece = 0; piece < own.pieces; ++piece) {
        const float* const statistic = found.statistic(piece, row);
        all.fold(statistic[0], statistic[1],
                 *reinterpret_cast<const FourFloats*>(found.output(piece, row) + column));
      }
    }
    write_output(params, item, row, column, all);
  });
}

}  // namespace att
