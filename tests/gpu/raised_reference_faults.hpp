// Faults planted where a loop raises its references (raise_references() of
// templates/tile/sm90_softmax.cuh).
#pragma once

#include <vector>

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

// Of one piece a tile, whose O is scaled when the next tile's first product was issued.
inline std::vector<Fault> raised_reference_faults() {
  return {
      {"O is not scaled",
       {{"if (kPieces == 1 && !all_lanes(owed == kNoRise)) scale_output(owed);", ""}}},
      {"O is not scaled behind the last tile",
       {{"if constexpr (kTracking) scale_owed();\n    if constexpr (!kSharesLast) {",
         "if constexpr (!kSharesLast) {"}}},
      {"rows that rise beside others do so in their references alone",
       {{"rows.sum[half] *= factor;", "rows.sum[half] *= above > kTrackedRise ? factor : 1.0f;"}}}};
}
// Of two.
inline const Fault kUnscaledPiece = {
    "O is not scaled in one slab",
    {{"} else if (kScalesAlways || raised) {", "} else if (raised && !kScalesAlways) {"}}};

}  // namespace attune::planted
