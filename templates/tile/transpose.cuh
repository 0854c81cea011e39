// Words exchanged among the quad of lanes that share the rows of an accumulator.
#pragma once

#include "templates/ptx/shuffles.cuh"

namespace att {

// One lane keeps `low` and gives `high`, the one `distance` away (`is_upper`) the other way round.
// Choosing between values, not between elements of an array: Clang would keep that in memory.
ATT_FN void exchange(unsigned& low, unsigned& high, bool is_upper, int distance) {
  const unsigned own_low = low, own_high = high;
  const unsigned other = shuffle_xor(is_upper ? own_low : own_high, distance);
  low = is_upper ? other : own_low;
  high = is_upper ? own_high : other;
}

// Lane t of a quad gives word i of its own to lane i and gets its word t of lane i: four words of 8
// columns' halves become one lane's 16 bytes.
ATT_FN void transpose_quad(unsigned (&words)[4]) {
  const int lane = thread_index() % 4;
  const bool odd = (lane & 1) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    exchange(words[i], words[i + 1], odd, 1);
  }
  const bool upper = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    exchange(words[i], words[i + 2], upper, 2);
  }
}

}  // namespace att
