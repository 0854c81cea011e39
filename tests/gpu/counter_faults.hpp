// Faults planted in how Hopper's backward kernels deal out key tiles and bring dQ's sums to rows.
#pragma once

#include <vector>

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

inline const Edit kHandedOnAsTheyAre = {
    "exchange_for_zeros_16(from + i * 128 + w * 512, numbers[i][w / 4][w % 4]);",
    "load_global_l2_16(from + i * 128 + w * 512, numbers[i][w / 4][w % 4]);"};

// Where items are taken off a counter.
inline std::vector<Fault> counter_faults() {
  return {
      {"the last item is not taken", {{"number < item_count(p)", "number < item_count(p) - 1"}}},
      {"sums are handed on as they are", {kHandedOnAsTheyAre}},
      {"the first share of a head stays in its sums",
       {{"if (number >= shares_of_head(p)) return;",
         "if (number >= shares_of_head(p)) return;\n"
         "if (number == 0) { if (leader) arrive(&counters->shares_free); continue; }"}}},
      {"dV leaves with the next item's number",
       {{"dv_map, first, c.h_kv, slice},", "dv_map, first + kTileKv, c.h_kv, slice},"}}}};
}

// No fault: CTAs help at once, where it is wanted or not, and the head's own leaves them time to.
inline Fault early_help() {
  return {"CTAs help at once",
          {{"{head - sums.behind - key_tile % 4, sums.converted}",
            "{head - 1 - key_tile % 4, sums.converted}"},
           {"int brought = 0;\n",
            "int brought = 0;\n"
            "for (int i = 0; head == own_head && i < 1000; ++i) wait_a_while();\n"}}};
}

// Where a CTA has a single item, and others help to bring dQ to rows.
inline std::vector<Fault> passing_faults() {
  Fault stays = early_help();
  stays.name = "what is taken in passing stays in its sums";
  stays.edits.push_back({"bring_share<kDqRows, kDqColumns / 8>(p, head, number);",
                         "if (goes_on) bring_share<kDqRows, kDqColumns / 8>(p, head, number);"});
  return {{"sums are handed on as they are", {kHandedOnAsTheyAre}},
          stays,
          {"the last CTA brings one share less",
           {{"while (number < shares_of_head(p)) {",
             "if (number == 0) { brought = 1; number = shuffle_from(take(), 0); }\n"
             "while (number < shares_of_head(p)) {"}}}};
}

// Where a warp of its own loads keys, and all heads have sums.
inline std::vector<Fault> apart_faults() {
  return {{"dQ of one key tile goes to another tile of queries",
           {{"return {index / of_head - base, index % of_head};",
             "return {index / of_head - base, (index + 1) % of_head};"}}},
          {"K comes with the next key tile's number",
           {{"item.own.kv_first + item.k0, item.h_kv,",
             "item.own.kv_first + item.k0 + kTileKv, item.h_kv,"}}}};
}

// Where a warpgroup makes nothing but dQ of an item's first tile.
inline std::vector<Fault> skipped_tile_faults() {
  return {{"what is skipped goes to another tile of queries",
           {{"sums = sums_tile(p, sums_base, tile.h, tile.tile);",
             "sums = sums_tile(p, sums_base, tile.h, 0);"}}},
          {"dS of a skipped tile is not zero",
           {{"for (unsigned& pair : ds_operand[step]) pair = 0;",
             "for (unsigned& pair : ds_operand[step]) pair = 0x3f803f80u;"}}}};
}

// Where rows are made ahead and first tiles are early.
inline Fault early_tile_fault() {
  return {"the last heads' first tiles are taken twice",
          {{"return {later + head, tile + 1};", "return {later + head, tile};"}}};
}

}  // namespace attune::planted
