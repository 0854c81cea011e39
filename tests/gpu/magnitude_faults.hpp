// Faults planted where scores of any magnitude meet their references
// (templates/tile/magnitude.cuh).
#pragma once

#include <vector>

#include "generator/plan/plan.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

struct FaultOfFamily {
  Family family;
  Fault fault;
};

// Seen by rows of nothing but large negative scores beside ordinary ones.
inline std::vector<FaultOfFamily> magnitude_faults() {
  const Fault rounded = {"a product is rounded before the maximum is subtracted",
                         {{"math_exp2(log2_above(score, -shift))",
                           "math_exp2(score * kReferenceUnit + shift * kReferenceUnit)"}}};
  return {
      {Family::kSm90a, {"maxima stay", {{"subtract_maxima(s, base);", ""}}}},
      {Family::kSm90a,
       {"large maxima are references",
        {{"bad |= (is_large(rows.maximum[0]) ? 1u : 0u) | (is_large(rows.maximum[1]) ? 2u : 0u);",
          ""}}}},
      {Family::kSm80, rounded},
      {Family::kDecode, rounded}};
}

}  // namespace attune::planted
