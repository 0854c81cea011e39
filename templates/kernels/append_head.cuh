// An example of what the generator puts in front of a kernel that appends to a cache: bf16, heads
// of 128, all of a key turned in halves. The real head has of head.cuh what these kernels read,
// and this file falls away.
#pragma once

#include "templates/append/params.h"
#include "templates/kernels/head.cuh"

namespace att {

// Which elements of a head turn together.
enum class Rotation {
  none,
  half,        // i and i + rotary_dim / 2
  interleaved  // 2 i and 2 i + 1
};

namespace append {
constexpr DType kCacheDType = DType::bf16;
constexpr int kHeadDimQk = 128;
constexpr int kHeadDimV = 128;
constexpr Rotation kRotation = Rotation::half;
constexpr int kRotaryDim = 128;  // the first so many elements of a head turn; 0: none
constexpr int kWorkers = 128;    // threads that a token has
constexpr int kTokens = 1;       // of an item
}  // namespace append

}  // namespace att
