// Faults planted in the copies of single rows from pages to where the tensor unit reads them.
#pragma once

#include <vector>

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

inline std::vector<Fault> page_row_faults() {
  return {
      {"a row is where the one behind it belongs, too",
       {{"from[j] = column + shuffle_long_of_four(before, j)",
         "from[j] = column + shuffle_long_of_four(before, j & 2)"}}},
      {"the next tile is looked up a key late",
       {{"page[i] = head.look_up(next_k0 + 32", "page[i] = head.look_up(next_k0 + 1 + 32"}}},
      {"every row is the first of its page",
       {{"static_cast<unsigned>(row) * static_cast<Offset>", "0u * static_cast<Offset>"}}},
      {"the last rows of a tile are not copied",
       {{"i < kBlocks; ++i) {\n      const bool", "i < kBlocks - 1; ++i) {\n      const bool"}}}};
}

// The same where K comes by boxes.
inline std::vector<Fault> value_row_faults() {
  return {
      {"the next tile's V is looked up a key late",
       {{"copies.look_up(v_head, next_k0)", "copies.look_up(v_head, next_k0 + 1)"}}},
      {"K's box is that of the tile before",
       {{"look_up_box(k_head.table, item.b, context.kv_len, k0)",
         "look_up_box(k_head.table, item.b, context.kv_len, k0 > kTileKv ? k0 - kTileKv : k0)"}}},
      {"a row of V is where the one behind it belongs, too",
       {{"from[j] = column + shuffle_long_of_four(before, j)",
         "from[j] = column + shuffle_long_of_four(before, j & 2)"}}}};
}

}  // namespace attune::planted
