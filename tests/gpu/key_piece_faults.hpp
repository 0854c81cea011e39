// Faults planted in how the pieces of a Hopper item's keys come together. They are of the last
// piece: a score that falls with the distance leaves the others nothing.
#pragma once

#include <vector>

#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

inline std::vector<Fault> key_piece_faults() {
  return {{"the last piece is left out",
           {{"for (int piece = 0; piece < own.pieces; ++piece) {\n    const float* const",
             "for (int piece = 0; piece < own.pieces - 1; ++piece) {\n    const float* const"}}},
          {"the last piece counts twice",
           {{"rows.sum[0] += root[0] * of.x[1] * root[0];",
             "rows.sum[0] += root[0] * of.x[1] * root[0] * (piece + 1 == own.pieces ? 2 : 1);"}}},
          {"the last piece ends a tile early",
           {{"return {begin, begin + share + (own.piece < rest ? 1 : 0)};",
             "return {begin, begin + share + (own.piece < rest ? 1 : 0) - "
             "(own.piece + 1 == own.pieces ? 1 : 0)};"}}}};
}

// In counters of packed sequences' pieces, which the launch in front zeroes: workspace that is not
// zero then has no item finished, or one too early.
inline Fault kept_counters() {
  return {"counters stay as they were",
          {{"params.pieces.arrivals[i] = 0;", "params.pieces.arrivals[i] += 0;"}}};
}

// Of a list of which some items are cut, those behind them.
inline Fault skipped_items() {
  return {"a whole item behind those that may be cut is left out",
          {{"number + (kMostListed - pieces.count) * heads",
            "number + (kMostListed + 1 - pieces.count) * heads"}}};
}

}  // namespace attune::planted
