// The sm90a family's cost model.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "generator/expr/score_line.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/sequence_lengths.hpp"
#include "generator/plan/sm90a.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/sm90a_pieces.hpp"
#include "generator/plan/sm90a_score_cost.hpp"
#include "generator/plan/wgmma.hpp"
#include "templates/work_items.h"

namespace attune::sm90a {
namespace {

constexpr int kBuffers = 4;       // more than a plan's score_buffers
constexpr int kElementBytes = 2;  // fp16 and bf16 alike
// What memory takes of masked items in a static order, which leaves it idle at the end: on an H100
// 32 causal sequences of 512 with 16 heads, d 128, take 135 us so, 110 off the counter.
constexpr double kStaticTransfer = 1.2;

// Rounds of mean items until the last CTA is done. `alike`: whether sequences are.
double rounds_of(const Sm90aPlan& tile, const LiveWork& work, double items, double ctas,
                 bool alike) {
  const Schedule schedule = tile.schedule;
  // Which of the known tensors' items are long, a launch's others may have elsewhere: of 52
  // problems whose tensors decide, at 4096 and 8192 tokens, a static order was 1 to 3 % faster on
  // two, and 9 to 25 % slower on average.
  const double luck = schedule == Schedule::kPersistent && work.is_described ? 1.08 : 1;
  // Head by head, long first tiles meet in a few CTAs: 48 heads of 32 tiles in 33 of 132. (H200,
  // `longformer`, 4096 tokens: 145 us, and 125 where those of a group came together, at its end.)
  const bool meet = schedule == Schedule::kPersistent && !work.is_described && work.long_first &&
                    tile.heads_per_group == 1;
  if (meet) return 1.15 * items / ctas * work.busiest;
  if (schedule == Schedule::kPersistent || work.is_described)
    return luck * items / ctas * work.busiest;
  const bool even = work.longest < 1.1 * work.shortest;
  if (even && alike) return std::ceil(items / ctas);
  // Whoever is free takes the next item: the longest first, or in the order of the grid.
  const double last = schedule == Schedule::kLongestFirst ? work.shortest : work.longest;
  return std::max(work.longest, items / ctas + 0.25 * last);
}

// What so many rounds take at least, whoever takes which item: of the longest that are more than
// whole rounds some CTA has one more. A chunk's items on many keys are nearly alike: 176 of 192
// queries behind 8192 keys, d 64, take an H200 229 us, 256 of 128 queries 179.
double least_rounds(const LiveWork& work, double items, double ctas) {
  const double most = std::ceil(items / ctas);
  const double longer = (most - 1) * ctas / items;  // of all items
  return most * (work.longest - (work.longest - work.shortest) * longer);
}

// Keys that take as long as what an item costs beside its tiles.
constexpr double kItemKeys = 220;

ItemOrder item_order(const AttentionSpec& spec, const Sm90aPlan& tile, const ProblemShape& shape,
                     const DeviceFacts& device) {
  const std::int64_t kv_bytes =
      kElementBytes * std::int64_t{spec.head_dim_qk + spec.head_dim_v} * shape.kv_len;
  const auto groups =
      att::group_sizes<std::int64_t>(shape.batch, shape.heads, shape.kv_heads, kv_bytes,
                                     kGroupBytes, tile.heads_per_group, spec.mask != nullptr);
  return {.ctas = device.processor_count / tile.cluster,
          .tiles_of_item = tile.cluster,
          .group = groups.size,
          .last_group = groups.last,
          .takes_next = tile.schedule != Schedule::kPersistent,
          .first_tile_first = true,
          .item_share = spec.samples.empty() ? 0 : kItemKeys / double(shape.kv_len)};
}

// Of a mask whose tensors are known, what a tile costs over one that is full. A warpgroup skips
// parts that are dead, but waits for the next tile with the others, and evaluates the mask for each
// element of a part that has a dead one.
double tile_weight(const Sm90aPlan& tile, const LiveWork& work) {
  constexpr double kWait = 0.65, kMask = 0.3;
  if (!work.is_described) return 1;
  // Two warpgroups hide less of what a mask costs than three or one.
  const double open = tile.warpgroups == 2 ? 1.05 : 1;
  return open *
         (kWait + (1 - kWait) * work.live_parts + kMask * work.live_parts * (1 - work.full_parts));
}

// Lines of L2 that the copies of a row ask for, slab by slab.
double lines_of_row(int head_dim) {
  constexpr int kLineBytes = 128;
  const int row_bytes = kElementBytes * head_dim;
  const int step = std::gcd(row_bytes, kLineBytes);
  int lines = 0;
  for (int offset = 0; offset < kLineBytes; offset += step) {
    for (int begin = 0; begin < row_bytes; begin += kLineBytes)
      lines += (offset + std::min(kLineBytes, row_bytes - begin) - 1) / kLineBytes + 1;
  }
  return double(lines) * step / kLineBytes;
}

// Whether rows begin amid a sector, as every other one of 144 bytes does.
bool splits_sectors(int head_dim) { return kElementBytes * head_dim % 32 != 0; }

// What L2 takes to hand out K and V again, `keys` of all items: where their rows are split so, of
// 72 columns an H200 drew 16 to 20 rows a nanosecond with one and with three warpgroups, on 60
// processors and on all (of 128 columns, 27 and more). So one warpgroup, which draws K and V twice
// as often as two do, takes 183 us for 3 x 256 queries on 4096 keys of 32 heads, and two take 101.
// Where items are cut, so that all processors draw, others are held to it as well: 128 queries on
// 28268 keys of 32 heads, 80 columns, take one warpgroup 213 us and two 99.
double drawn_rows_us(const AttentionSpec& spec, const DeviceFacts& device, double keys,
                     bool is_cut) {
  constexpr double kLinesPerClock = 0.25;  // of each processor
  double lines = 0;
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (is_cut || splits_sectors(dim)) lines += lines_of_row(dim);
  }
  return keys * lines / (kLinesPerClock * device.processor_count * device.clock_ghz * 1e3);
}

// Whether pieces' copies are of rows that begin amid a line of L2, so that what a CTA has under way
// decides how fast they come.
bool counts_copies(const AttentionSpec& spec, const Sm90aPlan& tile) {
  constexpr int kLineBytes = 128;
  return tile.pieces > 1 && (kElementBytes * spec.head_dim_qk % kLineBytes != 0 ||
                             kElementBytes * spec.head_dim_v % kLineBytes != 0);
}

// How much longer those take with few under way while a tile is computed. Of all processors that
// draw rows of 80 columns an H200 wants some 60 KB each: with two stages of 64 keys 128 queries on
// 28268 keys of 32 heads take 145 us, of 128 keys 119, of 176 keys 120, with three of 96 keys 105
// to 111.
double waits_for_copies(const AttentionSpec& spec, const Sm90aPlan& tile) {
  if (!counts_copies(spec, tile)) return 1;
  constexpr double kEnoughBytes = 62e3;
  const double bytes =
      kElementBytes * double(spec.head_dim_qk + spec.head_dim_v) * tile.tile_kv * (tile.stages - 1);
  return std::max(1.0, std::sqrt(kEnoughBytes / bytes));
}

// Clocks of an SM for one kv tile by each of its units.
struct TileClocks {
  double matrix, exponentials, issue;
  double sum() const { return matrix + exponentials + issue; }
  // Units overlap in part, so that a busy second one adds to the first: the smaller `power`, the
  // more.
  double overlapped(double power) const {
    return std::pow(
        std::pow(matrix, power) + std::pow(exponentials, power) + std::pow(issue, power),
        1 / power);
  }
};

// What a product takes with Q in shared memory, with Q in registers 1. Of the 160 registers of
// three warpgroups' threads a mask needs more than the reads cost; and a warpgroup alone, which
// waits for its products anyway, is no slower: on one spec, `tree_attention`, 252 us instead of
// 254, and a sixth less to compile.
double q_reads(const Sm90aPlan& tile, bool has_mask) {
  if (tile.q_in_registers) return 1.0;
  if (tile.warpgroups == 3) return has_mask ? 0.95 : 1.0;
  return has_mask && tile.warpgroups == 1 && tile.score_buffers == 2 ? 0.99 : 1.035;
}

TileClocks tile_clocks(const AttentionSpec& spec, const Sm90aPlan& tile,
                       const DeviceFacts& device) {
  const bool has_mask = spec.mask != nullptr;
  const double elements = double(tile.warpgroups * kRows) * tile.tile_kv;
  const double dims = whole_steps(spec.head_dim_qk) + whole_steps(spec.head_dim_v);
  const double flops_per_clock =
      device.matrix_tflops * 1e3 / (device.processor_count * device.clock_ghz);
  // A product of 48 keys still leaves the tensor cores time to fetch the next one's operands.
  const int piece_keys = tile.tile_kv / tile.score_buffers;
  const double narrow = tile.score_buffers == 1 || piece_keys >= 64 ? 1.0
                        : piece_keys >= 48                          ? 1.06
                                                                    : 1.25;
  // Three warpgroups leave the exponential unit idle less often than two; what one wastes shows in
  // how little of it overlaps.
  constexpr std::array<double, 4> kIdle{0, 0.55, 1.36, 1.12};
  // Instructions an element, beside what a tile costs a warp.
  const double per_element = (tile.frozen_max ? 3.5 : 6.0 + spec.head_dim_v / 128.0) +
                             (spec.score ? 8.0 : 0.0) + (has_dropout(spec) ? 6.0 : 0.0);
  return {
      .matrix = 2.0 * elements * dims / flops_per_clock / 0.9 * q_reads(tile, has_mask) * narrow,
      .exponentials = elements / 16 * kIdle[std::size_t(tile.warpgroups)],
      .issue = elements / 128 * per_element + tile.warpgroups * 140.0};
}

// Heads abreast that gain by the number of items alone: where a head has queries enough they take
// -2 to 2 % longer than the same tile of one head (H200, d 128 causal, 512 to 4096 tokens). Of
// packed sequences, whose last tiles are seldom full, tiles of 64 queries waste less: 16 of 256
// tokens, 32 heads on 8, 65 to 55 us.
bool is_level(const AttentionSpec& spec, const Sm90aPlan& tile) {
  return tile.heads > 1 && !is_packed(spec);
}

// Clocks of a tile beside its products for the boxes that bring K and V from pages, a slab and the
// rows of a tile in a page each. A launch says how long pages are; here they have 64 rows, which a
// tile of 80 keys shares in boxes of 16. H200, 2048 queries behind 8192 keys, 32 heads on 8, d 128:
// in pages of 64 three warpgroups take 545 us with 80 keys and 483 with 64. Two with 128 keys take
// 424 in pages of 64 and 532 in pages of 16. At d 64, where half as many come, 112 keys take 223 us
// and 96, whose boxes have 32 rows, 225.
double box_clocks(const AttentionSpec& spec, const Sm90aPlan& tile) {
  constexpr int kPageRows = 64;
  constexpr double kBoxClocks = 30;
  if (!is_paged(spec) || spec.head_dim_qk <= kSlabColumns) return 0;
  const int boxes = tile.tile_kv / std::gcd(tile.tile_kv, kPageRows);
  return kBoxClocks * boxes * (slabs(spec.head_dim_qk) + slabs(spec.head_dim_v));
}

// Clocks of a work item beside its tiles.
double item_overhead(const AttentionSpec& spec, const Sm90aPlan& tile, const TileClocks& clocks) {
  // A CTA of its own for every item has its launch and first loads in the open.
  double overhead = tile.schedule == Schedule::kSingle ? 7150 : 2900;
  overhead += masked_pair(spec, tile);
  if (!tile.tma_store) overhead += 500;
  if (stages_in_q(spec, tile)) overhead += 270;  // the next Q waits for O
  if (tile.cluster > 1) overhead += 1150;        // its CTAs wait for each other
  // Short sequences have few tiles an item, under which three warpgroups' beginning does not hide:
  // 200 of 82 tokens on average, d 64, take three 103 us, two 94 (H200).
  if (is_packed(spec) && tile.warpgroups == 3) overhead += 250;
  // Nothing runs under the first piece.
  overhead += 0.35 * clocks.sum() / tile.score_buffers;
  // What the producer has fetched ahead when the consumers come to an item.
  return overhead + 4200 * std::exp(-(tile.stages - 1) * tile.tile_kv / 75.0);
}

}  // namespace

// Fitted to `bench/regret --survey` of eight specs at three to six lengths, 42 shapes: d 64, 128
// and 256, full and causal, a window, documents. What matters is the order of plans. Constants that
// stand on other data say on which.
PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aPlan& tile = tile_of(plan);
  const bool has_mask = spec.mask != nullptr;
  const TileClocks clocks = tile_clocks(spec, tile, device);
  // The CTAs of a cluster wait for each other.
  const double sharing = tile.cluster == 1 ? 1.0 : has_mask ? 1.045 : 1.02;
  const bool is_plain = !has_mask && !spec.score && tile.score_buffers == 1 &&
                        spec.head_dim_qk <= 128 && !is_packed(spec) && !is_paged(spec);
  // Without a mask, of two warpgroups and 128 columns, Q in registers beside tiles of 128 keys
  // takes 1 to 2 % less time than beside 64 from 2048 keys on, and heavy tails 12 % (H200).
  const bool is_square = is_plain && !has_dropout(spec) && tile.heads == 1 && tile.pieces == 1 &&
                         tile.warpgroups == 2 && tile.q_in_registers && tile.tma_store &&
                         !stages_in_q(spec, tile) && tile.tile_kv == 128 &&
                         spec.head_dim_qk == 128 && spec.head_dim_v == 128;
  // ptxas orders the steady loop of other wide tiles without a mask worse beside a store by TMA.
  const double ordered = is_square                                            ? 0.985
                         : !has_mask && tile.tma_store && tile.tile_kv >= 128 ? 1.037
                                                                              : 1.0;
  // Three warpgroups that all wait for the same wide tile get into step: 5 to 11 % at d 96;
  // elsewhere taking turns is level.
  const bool in_step =
      !has_mask && tile.warpgroups == 3 && tile.score_buffers == 1 && tile.tile_kv > 96;
  // Without a mask two warpgroups hide the softmax as well with one buffer as with two: in a sweep
  // of `specs/bench` 64 keys at d 128 are 1 to 4 % faster than 128 in two.
  const bool paired = !has_mask && !spec.score && tile.warpgroups == 2 && tile.score_buffers == 2;
  const double wide = paired ? 1.02 : 1.0;
  const ScoreCost score = score_cost(spec, tile);
  // Q in registers beside 128 scores and 128 columns leaves ptxas few: narrower tiles are level (96
  // keys 1325 us and 1326 at 8192 tokens, 64 keys 0.3 % slower) and take a fifth to a third less to
  // compile. Three warpgroups take 2 % longer there.
  const bool is_crowded = tile.q_in_registers && tile.tile_kv >= 128 && spec.head_dim_v >= 128;
  const double crowded = !is_plain                  ? 1.0
                         : tile.warpgroups == 3     ? 1.003
                         : is_crowded && !is_square ? 1.01
                                                    : 1.0;
  // Plans with the same tile take 4 to 6 % longer (H200, d 128 and 256, 1024 and 8192 tokens).
  const double p_writes = tile.p_in_shared ? 1.05 : 1.0;
  // Under a mask at d 64 turns take 2 % less than none (96 keys, H200).
  const bool in_step_masked = !spec.score && tile.warpgroups == 3 && tile.score_buffers == 1 &&
                              tile.tile_kv >= 96 && spec.head_dim_qk <= kSlabColumns &&
                              is_plain_band(spec);
  const double turns = tile.ping_pong ? 1.005 : in_step ? 1.1 : in_step_masked ? 1.03 : 1.0;
  // Two warpgroups hide less of what a mask costs than three: of 2578 plans that a sweep of 73
  // shapes timed, 4 to 12 % at d 64 to 128 under windows and NATTEN. Where documents are read they
  // do not.
  const bool in_open = has_mask && tile.warpgroups == 2 && spec.environment.tensors.empty();
  // Pages: 8192 causal tokens of 32 heads, d 128, take two 737 us and three 771.
  const double open = !in_open ? 1.0 : is_paged(spec) ? 1.04 : 1.1;
  // Where a warpgroup has rows of several heads an item is as long and no faster: 512 queries
  // behind 8192 keys, 32 heads on 8, take an H200 119 us so, and 115 with a head a warpgroup.
  const double abreast = tile.heads > tile.warpgroups ? 1.04 : is_level(spec, tile) ? 1.02 : 1.0;
  // A running maximum; of batch-invariant specs one that is seldom raised, and for them a static
  // order of a mask's items takes 3 to 8 % longer (H200, d 128 causal, 1024 and 8192 tokens; of 512
  // queries on 32768 keys, where items are alike, it takes 2 % less).
  const double in_static_order = has_mask && tile.schedule == Schedule::kPersistent ? 1.07 : 1.0;
  const double running = tile.frozen_max        ? 1.0
                         : spec.batch_invariant ? 1.15 * in_static_order
                                                : 1.3;
  // Of a long walk, as those that are cut are, one warpgroup's tile takes 0.7 to 1 of two's, and by
  // what is said here 0.65.
  const double alone = tile.pieces > 1 && tile.warpgroups == 1 ? 1.25 : 1.0;
  // A warpgroup alone does one after the other.
  const double a_tile = clocks.overlapped(tile.warpgroups == 1 ? 1.07 : 3.3) * running * sharing *
                            ordered * turns * open * wide * score.tile * crowded * p_writes *
                            abreast * alone +
                        box_clocks(spec, tile);

  const bool zeroes_counter =
      tile.schedule == Schedule::kLongestFirst && !has_launch_in_front(spec);

  return {.item = item_overhead(spec, tile, clocks) + score.item,
          .tile = a_tile,
          .launch_us = (zeroes_counter ? 4.5 : 3) + tile_list_us(spec),
          .group = {tile.warpgroups, tile.tile_kv, tile.cluster, static_cast<int>(tile.schedule),
                    tile.heads_per_group, tile.heads, kBuffers * tile.pieces + tile.score_buffers,
                    counts_copies(spec, tile) ? tile.stages : 0}};
}

// Without tensors only a static schedule's order matters.
Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
              const DeviceFacts& device) {
  const Sm90aPlan& tile = tile_of(plan);
  const int queries = is_level(spec, tile) ? tile.warpgroups * kRows : item_queries(tile);
  // Heads abreast have the same queries: all live together.
  Tiling tiling{.tile_q = queries,
                .tile_kv = tile.tile_kv,
                .order = {},
                .part_q = tile.heads > 1 ? queries : kRows};
  if (tile.schedule == Schedule::kPersistent || !spec.samples.empty())
    tiling.order = item_order(spec, tile, shape, device);
  return tiling;
}

// Tiles that items of few tiles take longer, which begin and end in the open, by two buffers more
// than by one. H200, us: 2 x 4096 queries on 77 keys, 10 heads, d 64, 22.6 by 96 keys in two, 20.6
// by 80 in one; on 154 28.7 by 160 in two, 24.0 by 80 in one; 16 of 8 x 300 24.9 and 19.6.
double tiles_in_open(const AttentionSpec& spec, const Sm90aPlan& tile, const ProblemShape& shape) {
  constexpr double kFewTiles = 3, kPairs = 0.4, kAlone = 0.15;
  constexpr std::int64_t kLeastQueries = 64;  // with fewer nothing was measured
  const bool is_plain = !spec.score && !has_dropout(spec) && !is_packed(spec) && !is_paged(spec) &&
                        spec.environment.tensors.empty() && spec.residues == 1;
  const double tiles = std::ceil(double(shape.kv_len) / tile.tile_kv);
  if (!is_plain || tile.pieces > 1 || tiles > kFewTiles || shape.q_len < kLeastQueries) return 0;
  return tile.score_buffers == 2 ? kPairs : kAlone;
}

// A few queries each on short sequences: 64 single tokens of up to 512 keys, 32 heads on 8, d 128,
// take an H200 46.5 us, 38 were expected.
double of_few_queries(const ProblemShape& shape) {
  constexpr std::int64_t kFewQueries = 9, kFewKeys = 1024;
  constexpr double kShort = 1.25;
  return shape.q_len < kFewQueries && shape.kv_len <= kFewKeys ? kShort : 1;
}

// What items of `tiles` tiles take longer of packed sequences than the model says of them, which
// dense ones were as good for. H200, pages, causal:
// - Three warpgroups: their item of a short sequence is mostly empty, and the longest keeps them
//   all. 768 queries beside 32 x 6 on 100 to 25268 keys, d 96, take 381 us so, by two 266. And of
//   one sequence, above d 64: 2048 behind 8192, 64 keys a tile, 483 us, by two and 128 keys 424.
// - Pieces of one sequence, which are not as even as they seem: 768 and 1024 behind 8192 and 512
//   behind 32768 0.99 to 1.02 of the time of whole items, where 0.85 to 0.91 was expected.
// - With a score two buffers: softcaps 1.05 to 1.09 in five steps.
// - Beside chunks, where single tokens walk over thousands of keys, a warpgroup alone, and up to d
//   128 two with one buffer of scores that are products alone: of 64 keys 1.04 to 1.12.
// - Three warpgroups whose items a K/V head's heads do not fill, of narrow heads: six for five, d
//   64, 1.11 and 1.12. At d 80 1.10, but eight heads of two warpgroups took 1.34 there.
double of_sequences(const AttentionSpec& spec, const Sm90aPlan& tile, const ProblemShape& shape,
                    double tiles) {
  constexpr double kThree = 1.2, kThreeOfOne = 1.1, kPieces = 1.1, kTwoBuffers = 1.06;
  constexpr double kOne = 1.25, kOneBuffer = 1.08, kOfOthers = 1.15, kShortWalk = 5;
  constexpr int kWideHead = 128, kNarrowHead = 64;
  if (!is_packed(spec)) return 1;
  const bool is_one = shape.batch == 1, three = tile.warpgroups == 3;
  double longer = 1;
  if (three && !is_one && shape.kv_len > 2 * shape.q_len && tiles > kShortWalk) longer *= kThree;
  if (three && is_one && is_paged(spec) && spec.head_dim_qk > 64) longer *= kThreeOfOne;
  if (is_one && tile.pieces > 1) longer *= kPieces;
  if (tile.warpgroups == 2 && tile.score_buffers == 2 && spec.score) longer *= kTwoBuffers;
  if (!has_chunks_beside_tokens(spec, shape)) return longer * of_few_queries(shape);
  if (tile.warpgroups == 1 && tile.pieces == 1) longer *= kOne;  // in pieces: plan_cost()
  const bool is_narrow = spec.head_dim_qk <= kNarrowHead;
  if (three && is_narrow && shape.heads / shape.kv_heads % tile.heads != 0) longer *= kOfOthers;
  const bool is_wide = spec.head_dim_qk > kWideHead;
  if (tile.warpgroups == 2 && tile.score_buffers == 1 && !spec.score && !is_wide)
    longer *= kOneBuffer;
  return longer;
}

// How much longer whole items of unequal sequences take on average, as nobody says how much longer
// the longest is than the mean: it keeps a CTA for so many `rounds` of mean items. 42 plans of 32
// problems took 0.46 to 1.16 of the time in pieces, more than 1.04 where that was under 120 us.
double uneven_lengths(const AttentionSpec& spec, const Sm90aPlan& tile, const ProblemShape& shape,
                      double filled, double rounds) {
  constexpr double kSkewed = 0.1, kSkewedBesideChunk = 0.15, kSkewedUnsaid = 0.25;
  constexpr double kSkewedRounds = 3, kLong = 0.02;
  constexpr std::int64_t kLongContext = 12288;  // of which the mean is the less the longer it is
  // Packed sequences that are not their own keys, of which no shape says how long the longest is:
  // 48 of which one has 8192 keys, 16 heads on one, take an H200 98 us so, 25 in stretches.
  const bool may_differ = is_packed(spec) && shape.batch > 4 && shape.kv_len > 2 * shape.q_len;
  if ((filled == 1 && !may_differ) || tile.pieces > 1) return 1;
  const double skewed = filled == 1                                  ? kSkewedUnsaid
                        : has_long_chunks_beside_tokens(spec, shape) ? kSkewedBesideChunk
                                                                     : kSkewed;
  return 1 + skewed * std::max(0.0, kSkewedRounds / rounds - 1) +
         (shape.kv_len > kLongContext ? kLong : 0);
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const Sm90aPlan& tile = tile_of(plan);
  const int rows = item_queries(tile);
  // How long a sequence alone is the shape says.
  const bool is_alone = is_packed(spec) && shape.batch == 1;
  const double known_tiles = std::ceil(double(shape.q_len) / rows);
  const double q_tiles =
      is_alone && tile.pieces > 1
          ? known_tiles
          : mean_query_tiles(spec, shape, double(rows * tile.cluster)) * tile.cluster;
  const double filled = filled_share(spec, shape, work.share);
  double kv_tiles = std::ceil(double(shape.kv_len) / tile.tile_kv) * work.share * filled;
  // Tensors that a mask reads leave less than what is not known to be dead. The survey has one such
  // spec: documents, four a sequence, leave less than half, and an item's edges.
  if (work.reads_tensors)
    kv_tiles = 0.43 * kv_tiles + 1.2 * (double(tile.warpgroups * kRows) / tile.tile_kv + 1);
  const double drawn_tiles = kv_tiles;
  kv_tiles += tiles_in_open(spec, tile, shape);
  kv_tiles *= tile_weight(tile, work);
  const auto heads = att::head_sets<std::int64_t>(shape.heads, shape.kv_heads, tile.heads);
  const double whole_items = q_tiles * double(heads) * double(shape.batch);
  // The longest sequence is cut where the mean one need not be.
  const CutItems cut =
      cut_items(spec, tile, whole_items, kv_tiles, 1 / filled, device.processor_count);
  const double items = whole_items * cut.pieces;
  // A CTA has whole tiles.
  if (cut.pieces > 1) kv_tiles = std::ceil(kv_tiles / cut.pieces);
  // A list has the longest first, and who is free takes the next; a static order does not know how
  // many of the long ones a CTA gets, and in a grid's they may come last: 4 x 128 to 512 queries on
  // up to 8320 keys, 8 heads, d 256, take an H200 211 us so, from a list 133.
  const bool has_many = is_packed(spec) && shape.batch > 1;
  const double luck = has_many && tile.schedule == Schedule::kSingle                   ? 1.2
                      : is_packed(spec) && tile.schedule == Schedule::kPersistent      ? 1.1
                      : tile.schedule == Schedule::kLongestFirst && !work.is_described ? 1.04
                                                                                       : 1.0;
  // The longest sequence, of which pieces are cut the more.
  const double longest = cut.pieces > 1 ? 1 : 1 / filled;
  const bool alike = !has_chunks_beside_tokens(spec, shape);
  double rounds =
      std::max(luck * rounds_of(tile, work, items, device.processor_count, alike), longest);
  if (is_alone && cut.pieces == 1 && !work.is_described) {
    rounds =
        std::max(rounds, least_rounds(work, known_tiles * double(heads), device.processor_count));
  }
  const double dims = spec.head_dim_qk + spec.head_dim_v;
  // Of the datasheet's rate: one query a head drew 0.72 to 0.84 of an H200's.
  constexpr double kMemoryShare = 0.8;
  const double bytes =
      kElementBytes * dims * double(shape.batch) *
      (double(shape.heads) * double(shape.q_len) +
       double(shape.kv_heads) * double(shape.kv_len) * seen_keys(work, shape) * filled);
  const double uneven = uneven_lengths(spec, tile, shape, filled, rounds);
  const bool is_static = tile.schedule == Schedule::kPersistent && spec.mask != nullptr;
  const double memory_us = (is_static ? kStaticTransfer : 1.0) * uneven * bytes /
                           (kMemoryShare * device.memory_gb_per_s * 1e3);
  // Beyond what every plan of every family draws once, unless all processors draw.
  const bool is_cut = cut.pieces > 1;
  const double drawn = whole_items / tile.cluster * drawn_tiles * tile.tile_kv;
  const double drawn_once =
      is_cut ? 0 : double(shape.batch) * double(shape.kv_heads) * double(shape.kv_len);
  const double drawn_us = drawn_rows_us(spec, device, std::max(0.0, drawn - drawn_once), is_cut) *
                          (is_cut ? waits_for_copies(spec, tile) : 1);
  // Pieces of tiles that few queries leave empty: 2 x 8 on 8192 keys, 40 heads on 8, 56 us, 31 were
  // expected; 3 x 8 on 1024 31 and 23.
  constexpr double kPiecesOfFewUs = 5;
  const bool is_few = is_packed(spec) && !is_alone && shape.q_len < kManyQueries;
  // One sequence fills tiles whoever shares a warpgroup. H200, 32 heads on 8, 512 queries: 23.7 us,
  // by rows of four heads 27.7; behind 8192 keys 130 and 152.
  constexpr double kSharedForNothing = 1.3;
  const bool is_full = shape.batch == 1 && shape.q_len >= kRows;
  return {.rounds = rounds,
          .tiles = kv_tiles,
          .slowdown = (is_full && tile.heads > tile.warpgroups ? kSharedForNothing : 1) * uneven *
                      of_sequences(spec, tile, shape, drawn_tiles),
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = std::max(memory_us, drawn_us),
          .beside_us = cut.beside_us + (is_cut && is_few ? kPiecesOfFewUs : 0),
          .seen = seen_of_tiles(spec, shape, rows)};
}

}  // namespace attune::sm90a
