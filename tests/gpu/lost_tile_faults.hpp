// A fault planted where a warp of the sm80 family makes up for what it lost
// (templates/kernels/sm80_forward.cuh).
#pragma once

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

// Of scores that rise at some key by more than a frozen reference has room for, in a few rows: to
// them what came before is nothing, but others of their warp lack it.
inline const Fault kLostForGood = {"the last tile before all was lost is not visited again",
                                   {{"missed = (tile | 1) + 1;", "missed = (tile | 1) + 3;"}}};
inline constexpr const char* kRisingScore =
    "score: score + (200 if kv_idx < 600 and q_idx % 29 == 5 else 0)\n";

}  // namespace attune::planted
