// Specs and problems of a cache whose rows are K, and whose first columns are V.
#pragma once

#include <iterator>
#include <vector>

#include "generator/spec/spec.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::mla {

struct Case {
  const char* name;
  const char* spec;  // after name, dtype and v_in_k
  ProblemShape shape;
};

// Dense problems: heads, lengths around tiles, masks, scores, sinks, strides of two layouts.
inline const Case kCases[] = {
    {"Heads16",
     "head_dim: {qk: 576, v: 512}",
     {.batch = 2, .heads = 16, .kv_heads = 1, .q_len = 1, .kv_len = 1025}},
    {"Heads64",
     "head_dim: {qk: 576, v: 512}\nmask: causal",
     {.batch = 1, .heads = 64, .kv_heads = 1, .q_len = 2, .kv_len = 700}},
    {"Heads128",
     "head_dim: {qk: 576, v: 512}\nlayout: bhsd",
     {.batch = 1, .heads = 128, .kv_heads = 1, .q_len = 1, .kv_len = 5000}},
    {"OneKey",
     "head_dim: {qk: 576, v: 512}",
     {.batch = 2, .heads = 16, .kv_heads = 1, .q_len = 1, .kv_len = 1}},
    {"OddHeads",
     "head_dim: {qk: 576, v: 512}\nmask: causal",
     {.batch = 1, .heads = 21, .kv_heads = 1, .q_len = 3, .kv_len = 333}},
    {"RowsWithoutKeys",
     "head_dim: {qk: 576, v: 512}\nmask: causal",
     {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 9, .kv_len = 4}},
    {"WindowAndSinks",
     "head_dim: {qk: 576, v: 512}\nmask: causal and (q_pos - kv_idx < 300 or kv_idx < 4)",
     {.batch = 1, .heads = 16, .kv_heads = 1, .q_len = 2, .kv_len = 4500}},
    {"SinkLogits",
     "head_dim: {qk: 576, v: 512}\ntensors: {sinks: {dtype: float32, dims: [heads]}}\n"
     "sink: sinks[h]",
     {.batch = 2, .heads = 16, .kv_heads = 1, .q_len = 1, .kv_len = 600}},
    {"ScoreByHead",
     "head_dim: {qk: 576, v: 512}\ntensors: {slope: {dtype: float32, dims: [heads]}}\n"
     "score: score + slope[h] * (kv_idx - q_pos)\nmask: causal",
     {.batch = 2, .heads = 16, .kv_heads = 1, .q_len = 2, .kv_len = 500}},
    {"SoftcapAndScale",
     "head_dim: {qk: 576, v: 512}\nsoftmax_scale: float\nscore: 20 * tanh(score / 20)",
     {.batch = 1, .heads = 32, .kv_heads = 2, .q_len = 1, .kv_len = 257}},
    {"MaskByHead",
     "head_dim: {qk: 576, v: 512}\nmask: causal and q_pos - kv_idx < 100 * (h + 1)",
     {.batch = 2, .heads = 8, .kv_heads = 1, .q_len = 2, .kv_len = 1000}},
    {"SteepScores",
     "head_dim: {qk: 576, v: 512}\nsoftmax_scale: 0.5",
     {.batch = 1, .heads = 64, .kv_heads = 1, .q_len = 1, .kv_len = 2500}},
    {"OtherWidths",
     "head_dim: {qk: 320, v: 256}\nmask: causal",
     {.batch = 1, .heads = 20, .kv_heads = 2, .q_len = 3, .kv_len = 400}},
    {"AllOfK", "head_dim: 128", {.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 300}},
};

// Of packed and paged sequences, after name, dtype and v_in_k.
inline constexpr const char* kSequenceSpecs[] = {
    "head_dim: {qk: 576, v: 512}\n",
    "head_dim: {qk: 576, v: 512}\nmask: causal\n",
    "head_dim: {qk: 576, v: 512}\nmask: causal and (q_pos - kv_idx < 200 or kv_idx < 4)\n",
};

// Wrong kernels of the mla family, of plans with several pieces.
inline std::vector<planted::Fault> faults() {
  return {
      {"P V of a tile left out",
       {{"warp.add_values(tile, weights);",
         "if (keys.k0 != 1024) warp.add_values(tile, weights);"}}},
      {"O not rescaled", {{"o[m][n][e] *= shrink[m][e / 2];", ";"}}},
      {"the sum not rescaled", {{"sum[half] *= less;", ";"}}},
      {"a warp's keys not in the sum",
       {{"all += sums[row * kKeyWarps + i];", "if (i != 1) all += sums[row * kKeyWarps + i];"}}},
      {"a tile of the keys stale",
       {{"const int k0 = keys_at(step).k0;",
         "const int k0 = keys_at(step).k0 - (keys_at(step).k0 == 1024 ? kKeys : 0);"}}},
      {"a warp's columns of V shifted",
       {{"const int first_unit = warp_index() * kColumnTiles;",
         "const int first_unit = warp_index() == 3 ? 0 : warp_index() * kColumnTiles;"}}},
      {"a piece lost",
       {{"weights.of[row][part] = weight;", "weights.of[row][part] = part == 1 ? 0.0f : weight;"}}},
      {"a key too many",
       {{"x = is_live(c, mask, 8 * n + e) ? x : -infinity();",
         "x = is_live(c, mask, 8 * n + e - 1) ? x : -infinity();"}}}};
}
// The same of plans of 64 rows. Where something does not shrink, references follow every score.
inline std::vector<planted::Fault> wgmma_faults() {
  const planted::Edit without_slack = {"constexpr float kSlack = 8.0f;",
                                       "constexpr float kSlack = 0.0f;"};
  return {
      {"the first half of O not rescaled to its own tile",
       {{"half.shrink(to_first);", ""}, without_slack}},
      {"the first half of O not rescaled to the other's tile",
       {{"half.shrink(to_both);", ""}, without_slack}},
      {"the second half of O not rescaled", {{"half.shrink(less);", ""}, without_slack}},
      {"P of the first tile not rescaled for the second half",
       {{"rows.store(shared + kFirstPOffset, to_both);",
         "rows.store(shared + kFirstPOffset, {1.0f, 1.0f});"},
        without_slack}},
      {"the sum not rescaled", {{"sum[half] *= less[half];", ""}, without_slack}},
      {"a warpgroup's sum lost",
       {{"quad_sum(sum[half]) + others[half]", "quad_sum(sum[half]) + 0 * others[half]"}}},
      {"P's columns exchanged for the other half",
       {{"offset(row, 2 * step + lane / 16)", "offset(row, 2 * step + 1 - lane / 16)"}}},
      {"the first tile's P for both",
       {{"add_values_shared(half, shared + kSecondPOffset",
         "add_values_shared(half, shared + kFirstPOffset"}}},
      {"the first half's values for both",
       {{"values_of(shared, 0, 1)", "values_of(shared, 0, 0)"}}},
      {"some columns of the keys stale",
       {{"copies.template load<0, kFirstEarly, kSlabs>(keys.at(2 * pair + 2).k0);",
         "copies.template load<0, kFirstEarly, kSlabs>(keys.at(2 * pair).k0);"}}},
      {"a piece lost",
       {{"weights.of[row][part] = weight;", "weights.of[row][part] = part == 1 ? 0.0f : weight;"}}},
      {"a key too many",
       {{"x = is_live(c, mask, 8 * n + e) ? x : -infinity();",
         "x = is_live(c, mask, 8 * n + e - 1) ? x : -infinity();"}}}};
}
// Of plans whose CTAs take stretches of packed sequences' keys.
inline std::vector<planted::Fault> stretch_faults() {
  return {
      {"pieces of an item in one another's place",
       {{"own.piece = min_i32(number - first, own.pieces - 1);", "own.piece = 0;"}}},
      {"an item of every line the same",
       {{"return which * line.count + line.number;", "return which * line.count;"}}},
      {"a unit behind a cut lost",
       {{"const int first = units_before(begin - of_item, of.units);",
         "const int first = units_before(begin - of_item, of.units) + (begin > of_item ? 1 : "
         "0);"}}},
      {"results added as they are",
       {{"all[j][0] += weights[i] * of[j][0];", "all[j][0] += of[j][0];"}}},
      {"a warpgroup's sum lost",
       {{"quad_sum(sum[1]) + others[1]", "quad_sum(sum[1]) + 0 * others[1]"}}},
      {"columns of O exchanged",
       {{"const unsigned other = shuffle_xor(odd != 0 ? first : second, 1);",
         "const unsigned other = shuffle_xor(odd != 0 ? second : first, 1);"}}},
      {"another sequence's keys", {{"int row = item.sequence.kv_first + k0;", "int row = k0;"}}}};
}
// Of the same, whose CTAs have equal parts of items.
inline std::vector<planted::Fault> part_faults() {
  return {{"parts of an item in one another's place", {{"found.piece.piece = part;", ""}}},
          {"a part twice",
           {{"found.units = {units_before(part), units_before(part + 1), of.units};",
             "found.units = {units_before(part - (part == 1)), units_before(part + (part != 1)), "
             "of.units};"}}},
          {"an item of every line the same",
           {{"return which * line.count + line.number;", "return which * line.count;"}}}};
}
// More sequences than equal parts are tried for: cut anywhere, into few pieces and many.
inline constexpr int kStretchedLengths[] = {
    5000, 100, 20000, 0,   700, 1,  3100, 64, 8193, 128, 1, 63, 65, 200, 0, 1,    90, 300,
    64,   2,   1000,  129, 1,   77, 0,    64, 15,   500, 1, 3,  64, 192, 9, 1500, 1,  40};
static_assert(std::size(kStretchedLengths) > 32);
// Items that CTAs have equal parts of, many and one.
inline constexpr int kNearlyEqualLengths[] = {8192, 7000, 7900, 0, 7501, 7168, 64, 8000, 7300};

inline constexpr const char* kFaultySpec = "head_dim: {qk: 576, v: 512}\nmask: causal";
struct FaultyPlan {
  const char* text;
  std::vector<planted::Fault> faults;
};
inline std::vector<FaultyPlan> faulty_plans() {
  return {{"q16 k32 s4 w4 p3", faults()}, {"q64 k64 s2 w8 p3", wgmma_faults()}};
}
inline constexpr ProblemShape kFaultyShape = {
    .batch = 1, .heads = 16, .kv_heads = 1, .q_len = 2, .kv_len = 2100};

}  // namespace attune::mla
