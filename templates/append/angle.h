// By how much a pair of elements turns at a position.
#pragma once

#include "templates/append/params.h"
#include "templates/kernels/append_head.cuh"

namespace att {

struct Turn {
  float cosine, sine;
};

// Of a part of a turn, in 2^-32. Taken to an eighth of a turn around zero, where the polynomials
// (Cephes' of single precision) are off by less than 2^-24.
ATT_FN Turn turn_by(unsigned phase) {
  const unsigned quarter = (phase + 0x20000000u) >> 30;
  // 2 pi / 2^32, by a number in [-2^29, 2^29).
  const float x = static_cast<float>(static_cast<int>(phase - (quarter << 30))) * 0x1.921fb6p-30f;
  const float z = x * x;
  const float sine =
      x + x * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
  const float cosine =
      1.0f - 0.5f * z +
      z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  const bool is_odd = (quarter & 1u) != 0;
  const float a = is_odd ? sine : cosine, b = is_odd ? cosine : sine;
  return {((quarter + 1u) & 2u) != 0 ? -a : a, (quarter & 2u) != 0 ? -b : b};
}

// Whole turns fall away by themselves in integers, so that an angle is as exact at the millionth
// position as at the first.
ATT_FN Turn turn_of(const AppendParams& p, int position, int pair) {
  if (p.cosines != nullptr) {
    const int last = p.table_positions - 1;
    const int listed = position < 0 ? 0 : position < last ? position : last;
    const long long at = listed * p.table_stride + pair;
    return {p.cosines[at], p.sines[at]};
  }
  const unsigned long long phase =
      static_cast<unsigned long long>(static_cast<long long>(position)) * p.turns[pair];
  return turn_by(static_cast<unsigned>(phase >> 32));
}

}  // namespace att
