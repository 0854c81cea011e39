// Faults planted where four elements share a reciprocal (templates/tile/shared_reciprocal.cuh).
// Not all that could be wrong there can be seen: what overflows is made again with a running
// maximum, which is right.
#pragma once

#include <vector>

#include "generator/plan/plan.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

inline std::vector<Fault> shared_reciprocal_faults(Pass pass) {
  std::vector<Fault> faults = {
      {"two pairs take each other's share in a lane",
       {{"return {of_all * cd, of_all * ab};",
         "const bool wrong = lane_index() == 5;\n"
         "  return {of_all * (wrong ? ab : cd), of_all * (wrong ? cd : ab)};"}}}};
  if (pass == Pass::kForward) {
    faults.push_back({"a dead element has the highest score",
                      {{"constexpr float kDeadDenominator = -0x1p-31f;",
                        "constexpr float kDeadDenominator = kDenominatorUnit;"}}});
  }
  return faults;
}

}  // namespace attune::planted
