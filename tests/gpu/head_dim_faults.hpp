// Faults planted in what keeps a head's columns apart from those behind them.
#pragma once

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

// Of O that is stored without TMA.
inline Fault columns_of_the_next_head() {
  return {"O has columns of the next head",
          {{"first + lane < spec::kHeadDimV / 8) {", "first + lane < kRegisters / 4) {"}}};
}

// Of tiles of 64 queries.
inline Fault last_block_not_added() {
  return {"a head's last block of columns is not added up",
          {{"for (int j = kOfLast; j < kOfFirst; ++j) use(j);",
            "for (int j = kOfLast; j < kOfFirst - 1; ++j) use(j);"}}};
}
inline Fault last_block_not_zeroed() {
  return {"a head's last block of columns is not zeroed",
          {{"kAreFirst ? spec::kHeadDimQk :", "kAreFirst ? spec::kHeadDimQk - 8 :"}}};
}

// Of tiles of 80, whose dQ is made transposed.
inline Fault last_warp_adds_nothing() {
  return {
      "a warp whose columns are a head's last ones adds nothing",
      {{"share * kDqColumns + warp * 16 >= kDim", "share * kDqColumns + warp * 16 + 16 > kDim"}}};
}

}  // namespace attune::planted
