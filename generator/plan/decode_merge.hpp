// What the decode family's packed plans take for merging the pieces of items that are cut. Of an
// H200, cold L2 (docs/lab/serving_cliffs.md).
#pragma once

#include <cstdint>

namespace attune {

// Pieces of a list, and where none is cut: 16 items of 3 units take 15.9 us, in stretches 23.3.
constexpr double kListMergeUs = 6.8, kUncutListUs = 2;
// Stretches cut nearly every item. Each CTA then has two, and waits for another's.
constexpr double kStretchMergeUs = 2;
// And what items of few keys take beside, each that a CTA has after its first: 512 of 309 keys on
// average 40.3 us, 34.7 as whole items, 37.2 from a list.
constexpr double kStretchItemUs = 3;
// Every 32 sequences after the first, which each CTA adds up, and the rows of the table that it
// then asks for: 256 of 295 keys, one K/V head, d 64, 25.3 us, as whole items 16.3.
constexpr double kStretchLineUs = 2.2;
// Where rows of a K/V head are several items: 8 x 5 queries on up to 1024 keys, 32 heads on 8, 29.4
// us, as whole items 19.2. And of clusters: 2 x 4 on 8192, 64 on 8, d 64, 26.0 in two items, 22.9
// in one.
constexpr double kStretchSharedUs = 3, kClusterSharedUs = 1.5;
// Four warps where memory takes less than so long: 2 x 1 on 1024 keys, 16 heads on 2, 19.9 us, by
// eight 15.8; whole items that have a processor each: 8 x 1 on 200 11.4 and 9.5.
constexpr double kStretchAloneUs = 1.5, kShortStretchesUs = 9, kFourAloneUs = 2;
// CTAs that look for whole items themselves, which nobody merges: by fit to the launches of 10 to
// 40 us of docs/lab/serving_cliffs.md.
constexpr double kFoundUs = 0.5;
// CTAs of a cluster look for their item themselves, and wait for one another at both ends.
constexpr double kPackedClusterUs = 2;
// Of eight warps each, beside four: 2 x 5 queries on up to 1000 keys, four heads, d 64, 10.1
// us, 9.2.
// At d 128 eight are the faster: 2 x 4 queries on up to 4096 keys, 14 heads on 2, 13.8 and 16.9.
constexpr double kEightWarpsUs = 0.7;
// Clusters that wait for room start slowly: 512 of four, d 256, 24 at once, take 189 us where a
// list takes 71; 512 of d 128, 56 at once, 99 and 58.
constexpr double kClusterRoundUs = 6;
// Of what sequences in pages lack of the longest (filled_share), how much longer memory takes. A
// cluster of the longest has no more CTAs than the others: of 4 of 9883 to 22735 keys 89 us, 76 in
// stretches; of 16 of which one has 8192 34.2, 20.1 in stretches. Of a list: 64 of 426 to 31855, d
// 64, 503 us, 443 in stretches; where lengths may be long, most are far from it: 128 of 200 to
// 30000 580 us, 542 in stretches.
constexpr double kUnevenClusters = 0.2, kUnevenOfMany = 0.35;
constexpr double kUnevenList = 0.12, kUnevenListOfLong = 0.3;
constexpr std::int64_t kManyClustered = 8, kLongContext = 12288;

// What the last CTA of an item reads: 128 pieces of 16 rows of 128 columns are 1 MB, and take 8 us.
inline double merge_us(double pieces, double result_bytes) {
  constexpr double kBytesPerUs = 130e3;
  return pieces > 1 ? pieces * result_bytes / kBytesPerUs : 0;
}

}  // namespace attune
