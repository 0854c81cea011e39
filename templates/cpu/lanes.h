// Rows of a matrix between memory and vector lanes: element i of the row in lane l is [i][l].
#pragma once

#include "templates/cpu/vector.h"

namespace att {

template <int kDim, int kCount>
ATT_INLINE void load_lanes(const Storage* from, long stride, int count, float (&to)[kDim][kCount]) {
  for (int lane = 0; lane < count; ++lane) {
    for (int i = 0; i < kDim; ++i) to[i][lane] = to_float(from[lane * stride + i]);
  }
  for (int i = 0; i < kDim; ++i) {
    for (int lane = count; lane < kCount; ++lane) to[i][lane] = 0.0f;
  }
}

template <int kDim, int kCount>
ATT_INLINE void store_lanes(const float (&from)[kDim][kCount], float scale, int count, Storage* to,
                            long stride) {
  for (int lane = 0; lane < count; ++lane) {
    for (int i = 0; i < kDim; ++i) from_float(from[i][lane] * scale, to[lane * stride + i]);
  }
}

template <int kDim, int kCount>
ATT_INLINE void clear(float (&sums)[kDim][kCount]) {
  for (int i = 0; i < kDim; ++i) {
    for (int lane = 0; lane < kCount; ++lane) sums[i][lane] = 0.0f;
  }
}

}  // namespace att
