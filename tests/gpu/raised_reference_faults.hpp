// Faults planted where a loop raises its references (raise_references() of
// templates/tile/sm90_softmax.cuh).
#pragma once

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

// Of two pieces a tile.
inline const Fault kUnscaledPiece = {
    "O is not scaled in one slab",
    {{"} else if (kScalesAlways || raised) {", "} else if (raised && !kScalesAlways) {"}}};

}  // namespace attune::planted
