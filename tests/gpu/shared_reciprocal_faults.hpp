// Faults planted where four elements share a reciprocal (templates/tile/shared_reciprocal.cuh).
// Not all that could be wrong there can be seen: what overflows is made again with a running
// maximum, which is right. So each fault has a spec in which its numbers stay ordinary.
#pragma once

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

// Of a spec without a mask, on whole tiles: beside a dead element it overflows.
inline const Fault kExchangedShares = {
    "two pairs take each other's share in a lane",
    {{"return {of_all * cd, of_all * ab};",
      "const bool wrong = lane_index() == 5;\n"
      "  return {of_all * (wrong ? ab : cd), of_all * (wrong ? cd : ab)};"}}};
// Of a forward pass with a mask whose rows have dead elements in front of live ones: the sm80
// family goes from the last tile down and meets a causal mask's diagonal before it shares
// reciprocals.
inline const Fault kDeadWithAScore = {
    "a dead element has the score 0",
    {{"constexpr float kDeadDenominator = -0x1p-31f;",
      "constexpr float kDeadDenominator = 2 * kDenominatorUnit;"}}};

}  // namespace attune::planted
