// A reciprocal that four numbers share. The unit that makes reciprocals and exponentials takes four
// lanes of a warp a clock, so what is made there by fours is made of products beside it.
#pragma once

#include "templates/ptx/math.cuh"

namespace att {

// Of the numbers a, b, c, d: `of_ab * b` is `factor / a`, `of_ab * a` is `factor / b`, and so it is
// with c and d.
struct SharedReciprocal {
  float of_ab, of_cd;
};
ATT_FN SharedReciprocal share_reciprocal(float a, float b, float c, float d, float factor) {
  const float ab = a * b, cd = c * d;
  const float of_all = math_reciprocal(ab * cd) * factor;
  return {of_all * cd, of_all * ab};
}

}  // namespace att
