// The decode family's cost model.
#include <algorithm>
#include <cmath>

#include "generator/plan/decode.hpp"
#include "generator/plan/decode_merge.hpp"
#include "generator/plan/decode_stretches.hpp"
#include "generator/plan/item_counts.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/pieces.hpp"
#include "generator/plan/sequence_lengths.hpp"
#include "templates/work_items.h"

namespace attune::decode {
namespace {

// Whether the warps of a CTA ask for few keys at a time.
bool draws_little(const DecodePlan& tile) { return tile.warps * tile.step_keys < 128; }

// Whether a list of pieces or of stretches follows from the lengths alone. Where prefixes are
// shared it follows from these, too.
bool finds_lengths(const AttentionSpec& spec) {
  return is_packed(spec) && !spec.batch_invariant && !spec.shared_prefixes;
}

// A cluster lies in one of the groups that processors come in: of an H200 eight, 14 to 18 each.
// Where a processor has room for one, two and three CTAs, it has clusters of four 30, 62 and 92
// times at once, of eight 15, 30 and 45 times (cudaOccupancyMaxActiveClusters).
double clusters_at_once(const AttentionSpec& spec, const KernelPlan& plan,
                        const DeviceFacts& device) {
  const int size = tile_of(plan).pieces, ctas = resident(spec, plan, device);
  const int groups = device.processor_count / 16;
  return size == 2 ? device.processor_count / 2 * ctas : groups * 15 * ctas / size;
}

// Of a key and its value.
double key_bytes(const AttentionSpec& spec) {
  return element_bytes(kv_dtype(spec)) * (padded_qk(spec) + padded_v(spec));
}

// What memory waits for CTAs where the tensors of a mask make items uneven. In the end it waits for
// the one that has the longest, in one piece: a CTA draws only so much, less where its warps ask
// for few keys at a time. And in between for clusters that begin. Of 64 lengths up to 8192 with a
// mean of 2430, 8 K/V heads, memory alone would take an H200 148 us: whole items 176 with steps of
// 128 keys, and 187 with 64; clusters of two and eight warps 166, of four 193, of eight 296; of
// four and four warps 169.
double uneven_us(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                 const DeviceFacts& device, const LiveWork& work, double items, double pieces) {
  if (!work.is_described) return 0;
  constexpr double kShare = 0.4, kBytesPerClock = 30, kClusterUs = 1.8;
  const double keys = double(shape.kv_len) * work.share * work.longest;
  const double bytes = keys * key_bytes(spec);
  const double slow = draws_little(tile_of(plan)) ? 1.3 : 1;
  const double last_us = kShare * slow * bytes / pieces / (kBytesPerClock * device.clock_ghz * 1e3);
  if (!tile_of(plan).in_cluster) return last_us;
  return last_us + kClusterUs * items / clusters_at_once(spec, plan, device);
}

constexpr double kItemClocks = 3000;  // Q and the first keys come in, warps merge

// What of that other CTAs do not hide, where one item comes after the other: 1536 heads of 49
// queries on 49 keys, d 32, take an H200 31 us with 32 rows an item, 51 with 16. Of an item whose
// warps have a step each it is all, and grows with the columns: as many of 17 on 17, d 64, take 31
// us, 18 in the sm80 family; 320 of 34 rows on 17 keys, d 96, 15 and 10.
double crowded_us(const AttentionSpec& spec, const DecodePlan& tile, const ProblemShape& shape,
                  const DeviceFacts& device, double ctas, double rounds) {
  constexpr double kRowClocks = 55, kColumns = 32;
  const bool is_short = shape.kv_len <= tile.warps * tile.step_keys;
  const double columns = is_short ? std::max(1.0, padded_v(spec) / kColumns) : 1;
  const double clocks = std::max(0.0, kRowClocks * columns * tile.tile_q - kItemClocks / ctas);
  return std::max(0.0, rounds - ctas) * clocks / (device.clock_ghz * 1e3);
}

// As seen_of_tiles() says it of tensor units' tiles. 2048 queries of 16 heads on 6144 keys, d 64,
// take an H200 338 us, 127 single tokens 616, both in one launch 930; of 64 heads on 8, d 128, 512
// on 8704 724, 127 555, both 1257. In stretches, of which others begin meanwhile, 470, 586 and 972,
// and 1065, 538 and 1431.
double seen_of_chunk(const AttentionSpec& spec, const ProblemShape& shape, const DecodePlan& tile) {
  if (!finds_lengths(spec) || !has_chunks_beside_tokens(spec, shape)) return 0;
  return tile.stretches ? 0.6 : 0.9;
}

// Of whole items, beside memory's time for all of them: one that is much longer than the others
// keeps a CTA when these are done. A share of what it takes if it has all keys that one may have,
// by fit to the launches of 10 to 40 us of docs/lab/serving_cliffs.md. Of packed sequences without
// pages the shape has the mean, and the longest is more of a guess: 192 of 37 keys on average, 8
// heads, 22.6 us, from a list 30.2.
double whole_us(const AttentionSpec& spec, const DeviceFacts& device, double longest_units) {
  constexpr double kBytesPerClock = 30;
  const double share = is_paged(spec) ? 0.3 : 0.1;
  const double bytes = longest_units * kUnitKeys * key_bytes(spec);
  return share * bytes / (kBytesPerClock * device.clock_ghz * 1e3);
}

// What CTAs take that look for whole items which a sequence has beyond those of a single query,
// each a lane's run of sequences after the other: of 256 sequences, eight K/V heads, d 64, of up to
// 256 keys an H200 took 62 us where every CTA looked, 41 where none does.
double found_us(const ProblemShape& shape, const DecodePlan& tile, double items_of_cta) {
  constexpr double kRunUs = 0.45;
  const auto of_token =
      double(att::tile_count<std::int64_t>(shape.heads / shape.kv_heads, tile.tile_q));
  const double further = 1 - of_token / double(packed_items_of_head(shape, tile.tile_q));
  return kRunUs * std::ceil(double(shape.batch) / 32) * further * std::max(1.0, items_of_cta);
}

// What packed items of few keys take whatever memory gives, as each begins, asks for lengths, pages
// and keys in turn, and merges what its warps found, while nothing but the other CTAs of its
// processor draws. 64 single tokens of up to 512 keys, 8 K/V heads, take an H200 34.5 us with two
// CTAs on a processor, 43.9 with one of eight warps; 128 of 101 keys on average 39.3 and 60.2. What
// the first of a CTA takes is the same for all plans. `items`: that a processor's CTA has.
double short_items_us(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device,
                      double items, double units) {
  if (!finds_lengths(spec) || tile_of(plan).in_cluster) return 0;
  constexpr double kBytesPerClock = 34;  // of a processor
  const double next_item_us = tile_of(plan).tile_q == 16 ? 4.8 : 6;
  const double bytes = units * kUnitKeys * key_bytes(spec) * resident(spec, plan, device);
  const double keys_us = bytes / (kBytesPerClock * device.clock_ghz * 1e3);
  const double further = items <= 1 ? 0 : std::max(items - 1, 1.0);
  return further * std::max(next_item_us, keys_us) + std::min(items, 1.0) * keys_us;
}

// All CTAs begin together, and so does the second item of each, which nothing hides where items are
// full of rows: 300 queries of eight heads, d 128, take an H200 18.9 us by 152 CTAs of which 132
// fit, 14.7 where all do.
double second_us(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                 double items_of_cta) {
  constexpr double kSecondUs = 3.5;
  const bool is_full = shape.q_len >= kManyQueries && items_of_cta > 1;
  return finds_lengths(spec) && !tile_of(plan).in_cluster && is_full ? kSecondUs : 0;
}

double result_bytes(const AttentionSpec& spec, const DecodePlan& tile) {
  return double(tile.tile_q) * (spec.head_dim_v + 2) * 4;
}

// Of packed sequences, beside items and keys; of stretches decode_stretch_cost() says it.
double beside_us(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                 const DeviceFacts& device, double items, double pieces) {
  const DecodePlan& tile = tile_of(plan);
  if (!finds_lengths(spec)) return 0;
  if (finds_whole_items(spec, tile)) {
    return tile.warps <= 4 && items <= device.processor_count ? kFourAloneUs : 0;
  }
  if (tile.in_cluster) {
    return kClusterRoundUs * std::max(0.0, items / clusters_at_once(spec, plan, device) - 1) +
           (packed_items_of_head(shape, tile.tile_q) > 1 ? kClusterSharedUs : 0);
  }
  return pieces > 1 ? kListMergeUs + merge_us(pieces, result_bytes(spec, tile)) : kUncutListUs;
}

// The same of stretches, which draw so many bytes.
double beside_stretches_us(const AttentionSpec& spec, const ProblemShape& shape,
                           const DecodePlan& tile, double items_of_cta, double memory_us) {
  const bool is_shared = packed_items_of_head(shape, tile.tile_q) > 1;
  const bool is_alone = tile.warps <= 4 && memory_us < kShortStretchesUs;
  return !finds_lengths(spec)
             ? 0
             : kStretchItemUs * std::max(0.0, items_of_cta - 1) +
                   kStretchLineUs * std::floor(double(shape.batch - 1) / 32) +
                   (is_shared ? kStretchSharedUs : 0) + (is_alone ? kStretchAloneUs : 0);
}

// Clocks of a processor for a unit of keys, where it has so many CTAs.
double unit_clocks(const AttentionSpec& spec, const DecodePlan& tile, int ctas) {
  // A processor draws what its warps have on their way in the time that memory takes to answer, up
  // to what its port lets through; and a warp needs its time for a step.
  constexpr double kLatencyClocks = 1000;
  // 48 CTAs of four warps drew 32 a clock each of an H200, 64 of eight 37: in a cluster one
  // sequence of 8192 keys takes 17.0 and 16.0 us, one of 131072 146 and 134.
  const double port_bytes_per_clock = tile.warps > 4 ? 37 : 30;
  const double in_flight = double(ctas) * tile.warps * (tile.stages - 1) * step_bytes(spec, tile);
  const double unit_bytes = double(kUnitKeys) / tile.step_keys * step_bytes(spec, tile);
  const double transfer = unit_bytes / std::min(port_bytes_per_clock, in_flight / kLatencyClocks);
  const double products =
      tile.tile_q / 16 * tile.step_keys / 16.0 * (padded_qk(spec) + padded_v(spec));
  const bool widens = has_scaled_cache(spec);
  // Of 32 lanes for a pair of elements of fp8. Its instructions keep the four schedulers busy, so
  // that more warps do not hide it (H200, d 128: 16 keys 1093 clocks of a scheduler, 32 keys 1886).
  constexpr double kPairClocks = 6;
  const double pairs = tile.step_keys * (padded_qk(spec) + padded_v(spec)) / 2 / 32.0;
  constexpr double kScoreClocks = 40;  // of a lane: prompts feel them (docs/lab/cliffs.md)
  // Of a step that reads Q from shared memory: 32 x 8 drafted tokens, 64 heads on 8, d 128, 16335
  // keys take an H200 552 us with 32 rows an item. Clusters have few keys, and were measured
  // before.
  constexpr double kQueriesRead = 1.5, kReadInCluster = 1.2;
  const double step_clocks = 350 + 1.5 * products + (widens ? kPairClocks * pairs : 0) +
                             kScoreClocks * tile.tile_q * tile.step_keys / 32;
  const double at_once = std::min(widens ? 4 : 16, ctas * tile.warps);
  const double reads = spec.shared_prefixes || queries_in_registers(spec, tile) ? 1
                       : tile.in_cluster                                        ? kReadInCluster
                                                                                : kQueriesRead;
  return std::max(transfer, reads * step_clocks * kUnitKeys / tile.step_keys / at_once);
}

// How much longer the tiles of clusters of packed sequences take whose CTAs are alone on a
// processor that has room for more: 32 of up to 15756 keys, 12 heads on one, d 64, 45.8 us in
// clusters of four times four warps, of eight times four 31.7.
double alone_in_cluster(const AttentionSpec& spec, const KernelPlan& plan,
                        const DeviceFacts& device, double ctas) {
  const DecodePlan& tile = tile_of(plan);
  if (!finds_lengths(spec) || !tile.in_cluster || ctas > device.processor_count) return 1;
  return unit_clocks(spec, tile, 1) / unit_clocks(spec, tile, resident(spec, plan, device));
}

}  // namespace

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const DecodePlan& tile = tile_of(plan);
  const int ctas = resident(spec, plan, device);
  const bool widens = has_scaled_cache(spec);
  constexpr double kLaunchUs = 3;
  // The last CTA reads what the others found (H200: 8192 keys of one sequence take 20.9 us in 12
  // pieces, 18.2 in a cluster of 8; counters were zeroed in front then).
  constexpr double kMergeUs = 6;
  constexpr double kPieceUs = 0.05;
  constexpr double kClusterMergeUs = 1;  // its CTAs read one another's shared memory
  constexpr double kDealUs = 4;          // a launch in front deals out the keys of packed sequences
  // Of stretches: a CTA finds its own.
  constexpr double kStretchUs = 3.6;
  // 32 rows of warps take longer to merge: 16 x 8 queries on up to 256 keys, 32 heads on 8, 21.8 us
  // so, by 16 rows, of which there are twice as many items, 18.4.
  const bool is_whole = finds_whole_items(spec, tile);
  const double rows_us = finds_lengths(spec) && tile.tile_q == 32 ? is_whole ? 4.5 : 1.5 : 0;
  const double deal_us =
      is_packed(spec) && !tile.in_cluster && !tile.stretches && !is_whole ? kDealUs : 0;
  const bool has_idle_warps = tile.warps > 4 && padded_qk(spec) + padded_v(spec) < 256;
  const double end_us = tile.in_cluster  ? !is_packed(spec) ? kClusterMergeUs
                                           : has_idle_warps ? kPackedClusterUs + kEightWarpsUs
                                                            : kPackedClusterUs
                        : is_whole       ? kFoundUs
                        : tile.stretches ? kStretchUs
                        : tile.pieces == 1 || finds_lengths(spec)
                            ? 0
                            : kMergeUs + kPieceUs * tile.pieces;
  return {.item = kItemClocks / ctas,
          .tile = unit_clocks(spec, tile, ctas),
          .launch_us = kLaunchUs + deal_us + end_us + rows_us,
          .group = {tile.tile_q, tile.pieces, ctas,
                    widens || (tile.in_cluster && is_packed(spec)) ? tile.warps : 0,
                    tile.in_cluster, tile.stretches, spec.samples.empty() ? 0 : draws_little(tile),
                    tile.in_cluster && is_packed(spec) ? 64 * tile.stages + tile.step_keys : 0}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).tile_q, .tile_kv = kUnitKeys, .order = {}};
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const DecodePlan& tile = tile_of(plan);
  // A scheduler with a single warp waits for it: 1390 clocks where more need 1093 each. Of
  // stretches all that are resident have one: 16 of up to 3278 keys, d 96, 37 us with six stages,
  // 31 with three, which leave room for a second CTA.
  constexpr double kSingleWarp = 1.27;
  const std::int64_t of_kv_head = packed_items_of_head(shape, tile.tile_q);
  const std::int64_t items = packed_items(shape, tile.tile_q);
  const double filled = finds_lengths(spec) ? filled_share(spec, shape, work.share) : 1;
  const double longest = double(shape.kv_len) * work.share / kUnitKeys, units = longest * filled;
  constexpr double kMemoryShare = 0.9;  // of the datasheet's rate: what a copy reaches
  const double memory_bytes_per_us = kMemoryShare * device.memory_gb_per_s * 1e3;
  const double dims = padded_qk(spec) + padded_v(spec);
  const double bytes = element_bytes(kv_dtype(spec)) * dims * double(shape.batch) *
                       double(shape.kv_heads) * double(shape.kv_len) * work.share * filled;
  if (tile.stretches) {
    ShapeCost cost = decode_stretch_cost(
        {tile.pieces, resident(spec, plan, device) * device.processor_count, is_paged(spec),
         result_bytes(spec, tile)},
        shape, device, double(of_kv_head) * double(shape.batch), units, longest);
    // Some processors draw more of memory's rate than others. Where each CTA has several items
    // these take more of them from a list; stretches they are through with early (H200: 64 x 8192
    // keys 504 us instead of 497, one sequence of 131072 beside 63 of 1024 216 instead of 202).
    // With one CTA each they are so from the first item on.
    const int at_once = resident(spec, plan, device);
    const double of_cta =
        double(items) / std::min(at_once * device.processor_count, att::kMostStretches);
    const double uneven = 1 + (at_once == 1 ? 0.01 : 0) + 0.06 * std::clamp(of_cta - 1, 0.0, 1.0);
    // Rows of a K/V head that are several items draw its keys at other times, each for itself where
    // L2 does not keep them: 8 x 5 queries on 70k keys, 12 heads on one, 267 us in stretches, from
    // a list, whose items of the same keys run together, 190. Of an H200's L2 little is kept that
    // long: 2 x 8 on 8192 keys, 40 heads on 8, 66 MB, 63 us by three items of 16 rows, 44 by two
    // of 32.
    constexpr double kKept = 0.25;
    const double drawn_again =
        double(of_kv_head - 1) * std::max(0.0, bytes - kKept * double(device.l2_bytes));
    cost.transfer_us += std::max((uneven * bytes + drawn_again) / memory_bytes_per_us,
                                 short_items_us(spec, plan, device, of_cta, units));
    if (has_scaled_cache(spec) && at_once * tile.warps < 8) cost.slowdown *= kSingleWarp;
    cost.beside_us += beside_stretches_us(spec, shape, tile, of_cta, bytes / memory_bytes_per_us);
    cost.seen = seen_of_chunk(spec, shape, tile);
    return cost;
  }
  const bool is_whole = finds_whole_items(spec, tile);
  PiecesOfSequences of_sequences = pieces_of_sequences(spec, shape, double(of_kv_head), tile.pieces,
                                                       !tile.in_cluster && !is_whole, units);
  of_sequences.longest_units /= filled;
  const double pieces =
      spec.batch_invariant  ? double(att::dealt_pieces<std::int64_t>(items, shape.kv_len))
      : finds_lengths(spec) ? of_sequences.of_mean
      : tile.in_cluster     ? double(tile.pieces)
                            : double(att::piece_count<std::int64_t>(items, tile.pieces));
  const double ctas = double(items) * pieces;
  const double at_once = double(resident(spec, plan, device)) * device.processor_count;
  const bool waits_for_room =
      tile.in_cluster && double(items) > clusters_at_once(spec, plan, device);
  const double of_processor = std::ceil(ctas / device.processor_count);
  // All that are resident begin together, and the longest of a causal prompt ends last: 3 x 1025
  // queries of 2 heads, d 112, take 29 us where twice the mean item would take 14.
  const double last =
      work.is_described
          ? 0
          : work.longest * std::min<double>(resident(spec, plan, device), of_processor);
  const double rounds = std::max(of_processor, last) + (waits_for_room ? 1 : 0);
  // What the last clusters read, few processors read: 89 us where pieces on their own take 77. And
  // where two CTAs fit on a processor, those of a cluster share one: 49.7 us against 45.1.
  const bool is_many =
      work.is_described && double(items) > 2 * clusters_at_once(spec, plan, device);
  const double uneven_cluster = shape.batch < kManyClustered ? kUnevenClusters : kUnevenOfMany;
  const double uneven_list = shape.kv_len > kLongContext ? kUnevenListOfLong : kUnevenList;
  const double uneven = (waits_for_room                                        ? is_many ? 1 : 1.2
                         : tile.in_cluster && resident(spec, plan, device) > 1 ? 1.1
                                                                               : 1) *
                        (filled == 1       ? 1
                         : tile.in_cluster ? 1 + uneven_cluster * (1 - filled)
                                           : 1 + uneven_list * (1 - filled));
  const double tiles = std::ceil(units / pieces);
  const bool waits = has_scaled_cache(spec) && rounds * tile.warps < 8;
  return {
      .rounds = rounds,
      .tiles = !finds_lengths(spec) ? tiles
               : (tile.in_cluster && is_paged(spec)) || is_whole
                   ? std::max(tiles, of_sequences.longest_units / rounds)
                   : tiles_with_longest(of_sequences, tiles, rounds),
      .slowdown = (waits ? kSingleWarp : 1) * uneven * alone_in_cluster(spec, plan, device, ctas),
      .units_per_us = device.clock_ghz * 1e3,
      .transfer_us = std::max(uneven * bytes / memory_bytes_per_us +
                                  uneven_us(spec, plan, shape, device, work, double(items), pieces),
                              short_items_us(spec, plan, device, ctas / at_once, units / pieces)),
      .beside_us = beside_us(spec, plan, shape, device, double(items), pieces) +
                   second_us(spec, plan, shape, ctas / at_once) +
                   crowded_us(spec, tile, shape, device, resident(spec, plan, device), rounds) +
                   (is_whole ? whole_us(spec, device, of_sequences.longest_units) +
                                   found_us(shape, tile, ctas / at_once)
                             : 0),
      .seen = seen_of_chunk(spec, shape, tile)};
}

}  // namespace attune::decode
