// The cost model of the sm90a family's backward plans.
#include <algorithm>
#include <cmath>

#include "generator/expr/derivative.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/score_line.hpp"
#include "generator/plan/backward.hpp"
#include "generator/plan/sm90a_backward.hpp"
#include "generator/plan/wgmma.hpp"
#include "templates/work_items.h"

namespace attune::sm90a_backward {
namespace {

// Whether warps beside the loader make rows for an item that other heads wait for, under a mask,
// which leaves some items little else.
bool helpers_take_time(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  return spec.mask && !spec.deterministic && !loads_keys_apart(spec, tile);
}

// Query tiles of a head that a mean item takes as long as, beside its own, where helpers_take_time:
// it lasts as long as they take for its share of rows, and somewhat longer where they make later
// heads' rows, too. H200, with keys apart, whose items lack this: d 128 causal 512 385 to 338 us,
// 1024 505 to 459, 4096 1225 to 1221; half of the key tiles seen by two query tiles (block
// diffusion) 1373 to 1283; a window of 1024 718 to 703. d 64: causal 512 453 to 392, 1024 532 to
// 538, 2048 835 to 833, 4096 1393 to 1467; a window 906 to 856.
double tiles_of_helpers(const AttentionSpec& spec, const ProblemShape& shape,
                        const Sm90aBackwardPlan& tile, const LiveWork& work) {
  const double of_tile = is_long(tile) ? 0.5 : 1;
  // Of tiles of 128 under a mask as many, off the counter: block diffusion 1150 us, with keys apart
  // 750; causal, 512 keys, 459 and 393.
  const bool is_long_off_counter = is_long(tile) && spec.mask && tile.takes_items;
  const double least = (is_long_off_counter ? 1 : of_tile) * (is_narrow(spec) ? 5 : 7);
  const double rows_ahead = of_tile * (is_narrow(spec) ? 1.3 : 1);
  constexpr std::int64_t kTilesOfHead = 16;  // from so many on: att::heads_with_rows
  const double query_tiles = std::ceil(double(shape.q_len) / tile.tile_q);
  double lacking = 0;
  for (const double live : work.of_keys) lacking += std::max(0.0, least - live * query_tiles);
  if (!work.of_keys.empty()) lacking /= double(work.of_keys.size());
  return lacking + (shape.kv_len > (kTilesOfHead - 1) * tile_kv(tile) ? rows_ahead : 0);
}

// Of what unknown tensors may leave, which are there to leave less: documents, causal, of 680 keys
// on average leave a tenth of 8192.
constexpr double kShareOfUnknown = 0.125;
// Query tiles that an item takes as long as beside its own, where a CTA that takes turns has a
// single one. Off the counter, causal, 1024 and 4096 keys, H200: d 128 560 to 501 and 1377 to 1359
// us, d 64 616 to 579 and 1625 to 1618.
constexpr double kTilesOfStartInOrder = 2;
// As tiles_of_helpers, where unknown tensors leave some heads' items long and others' short: off
// the counter helpers wait for all of an earlier head's. Documents, d 64, of 16384 keys: 1822 to
// 2106.
constexpr double kTilesOfUnknownWait = 7;

// Of plain kernels, whose keys all queries see, what short sequences cost besides: of heads of so
// few key tiles nothing hides what the first and the last launch move, and of items of one query
// tile nothing hides the chain of loads, products and stores. H100, us, five products and seven: 12
// heads of 32 x 128, d 64, 54 and 47; 28 of 4 x 64 20 and 16; 16 of 16 x 257, d 80, 134 and 116; 16
// of 32 x 256, d 72, 181 and 156; but 16 of 32 x 257, d 64, 173 and 179, of 8 x 512 88 and 93. 24
// of 64 x 49, d 32, 88, of the sm80 family 43.
constexpr double kFewKeyTiles = 3, kChainClocks = 5000;
// Keys apart come while the item before is finished. H200, us, without and with: 12 heads of 16 x
// 32 on 257 40 and 31, 20 of 8 x 1 on 1500 86 and 67, 12 of 64 x 100 83 and 52, of 64 x 197 165 and
// 155, 16 of 8 x 512 82 and 78; of 8 x 577 both take 105, of 8 x 1024 208 and 224, 32 of 32 x 512
// 489 and 523.
constexpr double kLoadClocks = 3500, kLoadClocksHidden = 140;  // by each query tile
double short_sequences_us(const AttentionSpec& spec, const ProblemShape& shape,
                          const Sm90aBackwardPlan& tile, double walk, const ShapeCost& cost) {
  const double key_tiles = std::ceil(double(shape.kv_len) / tile_kv(tile));
  const bool is_apart = is_narrow(spec) && loads_keys_apart(spec, tile);
  const double in_open = is_apart && key_tiles == 1 ? 0.8 : 1;
  const double us = key_tiles <= kFewKeyTiles ? in_open * cost.transfer_us : 0;
  double clocks = walk <= 1 ? kChainClocks : 0;
  if (is_narrow(spec)) {
    const bool is_hidden = is_apart || (walk > 1 && key_tiles > kFewKeyTiles);
    clocks = is_hidden ? 0 : kLoadClocks - kLoadClocksHidden * walk;
  }
  return us + cost.rounds * std::max(0.0, clocks) / cost.units_per_us;
}

// Short heads come one by one, so that the last one's longest tile begins behind all others': by a
// list schedule of causal heads of 8 to 15 key tiles one mean item more than the work of all
// processors, off the counter a fifth of it. H200, 12 heads of 2 x 1498, d 128, causal: 128 us, off
// the counter 101; but 8 heads of 1860, which begin at once, 92 and 96.
double rounds_one_by_one(const ShapeCost& cost, double items, const DeviceFacts& device,
                         const LiveWork& work) {
  constexpr double kOfUnevenness = 1.2;
  if (items <= device.processor_count) return cost.rounds;
  const double uneven = kOfUnevenness * (longest_key_tile(work) - 1);
  return std::max(cost.rounds, items / device.processor_count + uneven);
}

// Rounds until the last group of heads is done, whose longest tile begins behind those of all other
// groups (templates/tile/backward_order.cuh). H200, 16 heads on 2 of 4 x 4097, d 40, causal: 33 key
// tiles, seven heads and one, 1094 us, off the counter 666.
double rounds_of_groups(const ShapeCost& cost, const ProblemShape& shape,
                        const Sm90aBackwardPlan& tile, const DeviceFacts& device,
                        const LiveWork& work) {
  const auto tiles = att::tile_count<std::int64_t>(shape.kv_len, tile_kv(tile));
  const std::int64_t heads = shape.batch * shape.kv_heads;
  if (tiles < att::kLeastTilesOfHead) {
    return rounds_one_by_one(cost, double(heads * tiles), device, work);
  }
  const std::int64_t size = std::max<std::int64_t>(1, att::kTilesOfGroup / tiles);
  const double before = double((heads - 1) / size * size * tiles);
  return std::max(cost.rounds, before / device.processor_count + longest_key_tile(work));
}

bool has_plain_scores(const AttentionSpec& spec) { return !spec.score && !has_dropout(spec); }

// What a query tile takes longer with keys loaded apart, as all heads have sums, whose way is to
// memory, and nothing of what shape_cost() says of items: beside a softcap, d 128, 2832 to 2994 us.
// d 64, 2048 keys, causal: ALiBi 898 to 938 us, a softcap 1098 to 1260.
double apart_clocks(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  constexpr double kApartClocks = 120, kApartScoreClocks = 400;
  constexpr double kNarrowClocks = 200, kNarrowBiasClocks = 370, kNarrowScoreClocks = 770;
  // In order sums have no other way: causal, 2048, 4096, 8192 and 16384 keys, 818, 1343, 2457, 5119
  // us, with a CTA a key tile 879, 1402, 2593, 5347.
  if (spec.deterministic && is_long(tile) && spec.mask && has_plain_scores(spec)) return 0;
  const bool adds = split_rows(spec).splits_references && !has_dropout(spec);
  const double clocks = !is_narrow(spec)
                            ? (has_plain_scores(spec) ? kApartClocks : kApartScoreClocks)
                            : (has_plain_scores(spec) ? kNarrowClocks
                               : adds                 ? kNarrowBiasClocks
                                                      : kNarrowScoreClocks);
  return clocks * tile.tile_q / kTileQ;
}

// Whether L2 keeps the sums of all heads, and loading keys apart costs nothing: H200, two heads on
// one of 26 x 1360, d 64, causal, 102 us, not apart 124.
bool has_all_sums_in_l2(const AttentionSpec& spec, const ProblemShape& shape) {
  constexpr double kBytes = 20e6;
  return 4.0 * double(shape.batch * shape.heads * shape.q_len) * spec.head_dim_qk <= kBytes;
}

// As kSkipsDeadFirst of the kernels.
bool skips_dead_first(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  const bool is_line = spec.score && expr::score_line(spec.score).has_value();
  const bool learns = !expr::look_up_derivatives(spec.score, spec.environment).empty();
  return spec.mask && tile_kv(tile) > tile.tile_q && !learns && (tile.takes_items || !is_line);
}

// Whether wide heads make dQ where S was and dS of P as rounded, without a mask: kMakesDqOfS of the
// kernels. Then tiles of 64 gain more than those of 80: H200, d 128, 1024, 4096 and 16384 keys 662
// to 630, 2020 to 1994 and 8192 to 8193 us, a relative bias 3928 to 3876.
bool rounds_unmasked(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  return spec.accuracy == Accuracy::kRelaxed && spec.dtype == DType::kBf16 && !spec.mask &&
         tile.tile_q == kTileQ && !loads_keys_apart(spec, tile) && !spec.deterministic &&
         slabs(spec.head_dim_qk) == 2 && slabs(spec.head_dim_v) == 2 &&
         spec.head_dim_qk % 16 == 0 && spec.head_dim_v % 16 == 0 &&
         split_rows(spec).splits_references && !has_dropout(spec) &&
         expr::look_up_derivatives(spec.score, spec.environment).empty();
}

// H200, 32 heads on 8, d 128, causal, 1024: 61 us expected, 106 measured; 40 on 8 70, 122; 28 on 4
// 61, 80; 32 on 8 of 512 34, 52.
constexpr double kShortParts = 1.7;

}  // namespace

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  const double flops = 5.0 * (whole_steps(spec.head_dim_qk) + whole_steps(spec.head_dim_v)) *
                       double(tile.tile_q) * tile_kv(tile);
  // Measured on an H200: d 128 reaches 0.67 of the dense rate, d 64 0.53; there beginning with
  // different tiles gains 5 %, at d 128 nothing. K and V in registers gain 4 % under a causal mask
  // and 1 % without one, a third stage 3 % (H100, 4096 keys), query tiles of 80 3 %; beside a
  // relative bias they gain 3 %, beside ALiBi, whose slope is the head's, they lose 3 % (H200).
  const bool narrow = is_narrow(spec);
  // Under a mask tiles of 128 gain more (docs/lab/backward.md, 71). Not where unknown tensors leave
  // items short: documents 459 to 494 us with keys apart, else to 611.
  const bool is_long_under_mask = is_long(tile) && spec.mask && !spec.deterministic;
  const double long_rate = !is_long(tile)                     ? 1.0
                           : !is_long_under_mask              ? 1.12
                           : spec.environment.tensors.empty() ? 1.17
                                                              : 1.0;
  const bool is_of_head = spec.score && (expr::depends_on(spec.score, expr::Variable::kHead) ||
                                         !spec.environment.tensors.empty());
  const double rate = (narrow ? 0.53 : 0.67) * (tile.rotated == narrow ? 1.0 : 0.97) *
                      (tile.stages == 2 ? 1.0 : 1.01) * (tile.keys_in_registers ? 1.03 : 1.0) *
                      long_rate * (rounds_unmasked(spec, tile) ? 1.05 : 1.0) *
                      (!is_tall(tile) ? 1.0
                       : is_of_head   ? 0.99
                                      : 1.03);
  const double flops_per_clock =
      rate * device.matrix_tflops * 1e3 / (device.processor_count * device.clock_ghz);
  // Off the counter an item costs half, and a tile 69 clocks more, for the warps that bring dQ to
  // rows: d 64 full 1024 759 to 725 us, 4096 2657 to 2683, causal 573 to 529, 1437 to 1400.
  constexpr double kItemClocks = 6000, kTakenItemClocks = 3000, kRowsClocks = 69, kLaunchesUs = 12;
  constexpr double kNarrowApartItemClocks = 3600;
  // Less of tiles of 128 under a mask: causal, 8192 keys 2572 to 2567 us, 12288 2817 to 2838, 16384
  // 4873 to 4936.
  constexpr double kLongMaskedRowsClocks = 60;
  const double rows_clocks =
      is_long_under_mask ? kLongMaskedRowsClocks : kRowsClocks * tile.tile_q / kTileQ;
  constexpr double kLongItemClocks = 3500;
  const bool is_apart = loads_keys_apart(spec, tile) && !is_packed(spec);
  const double narrow_item = is_apart ? kNarrowApartItemClocks : kTakenItemClocks;
  // Nothing hides what a tile of 128 queries waits for at an item's beginning and end.
  const double long_item = is_long(tile) ? kLongItemClocks : 0;
  // Half of an item's first tile of 64 is skipped: causal, 512 and 2048 keys 395 to 381 us, 834 to
  // 823.
  constexpr double kSkippedClocks = 1000;
  const double skipped = narrow && skips_dead_first(spec, tile) ? kSkippedClocks : 0;
  return {.item = (tile.takes_items && !is_wide(spec) ? narrow_item : kItemClocks) + long_item -
                  skipped + (tile.cuts_walks ? kPartClocks : 0),
          .tile = flops / flops_per_clock + (is_apart           ? apart_clocks(spec, tile)
                                             : tile.takes_items ? rows_clocks
                                                                : 0),
          .launch_us = kLaunchesUs,
          .group = {tile.tile_q, tile_kv(tile), is_apart, tile.takes_items, tile.cuts_walks}};
}

Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).tile_q,
          .tile_kv = tile_kv(tile_of(plan)),
          .order = {},
          .by_keys = spec.mask != nullptr && !is_packed(spec)};
}

// O, dO and zeroed sums, then sums and dQ.
ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  ShapeCost cost = backward_shape_cost(
      tile.tile_q, tile_kv(tile),
      4.0 * spec.head_dim_v + 10.0 * slabs(spec.head_dim_qk) * kSlabColumns, shape, device, work);
  cut_walks(spec, tile.cuts_walks, tile.tile_q, tile_kv(tile), kShortParts, shape, device, cost);
  cost.seen = rows_are_in_open(spec, shape, work, cost.rounds) ? 1 : 0;
  const double query_tiles = std::ceil(double(shape.q_len) / tile.tile_q);
  if (spec.mask && !tile.takes_items && !spec.deterministic && !is_packed(spec)) {
    cost.rounds = rounds_of_groups(cost, shape, tile, device, work);
  }
  // Not of short walks: causal, 16 heads of 1024, 57 us here, 63 by the plan that won with it.
  const double walk = query_tiles * double(shape.heads) / double(shape.kv_heads);
  if (!spec.mask && has_plain_scores(spec) && !spec.deterministic && !is_packed(spec)) {
    cost.beside_us = short_sequences_us(spec, shape, tile, walk, cost);
  }
  // H200, causal: 16 heads of 64 x 49, d 32, 45 us, of the sm80 family 34.
  constexpr double kMaskedChainClocks = 1600;
  if (spec.mask && is_narrow(spec) && walk <= 1 && !is_packed(spec)) {
    cost.beside_us = cost.rounds * kMaskedChainClocks / cost.units_per_us;
  }
  constexpr double kLongWalk = 32;
  if (cost.rounds <= 1 && walk >= kLongWalk && !is_packed(spec)) {
    cost.tiles *= longest_key_tile(work);
  }
  if (work.reads_tensors) cost.tiles *= kShareOfUnknown;
  if (spec.mask && spec.deterministic && !loads_keys_apart(spec, tile)) {
    cost.tiles += kTilesOfStartInOrder * double(shape.heads) / double(shape.kv_heads);
  }
  if (spec.mask && is_narrow(spec) && has_plain_scores(spec) && loads_keys_apart(spec, tile) &&
      !is_packed(spec) && has_all_sums_in_l2(spec, shape)) {
    cost.tiles *= 1 - apart_clocks(spec, tile) / plan_cost(spec, plan, device).tile;
  }
  if (helpers_take_time(spec, tile)) {
    const double group = double(shape.heads) / double(shape.kv_heads);
    cost.tiles += group * tiles_of_helpers(spec, shape, tile, work);
    if (work.reads_tensors && tile.takes_items) cost.tiles += group * kTilesOfUnknownWait;
  }
  return cost;
}

}  // namespace attune::sm90a_backward
