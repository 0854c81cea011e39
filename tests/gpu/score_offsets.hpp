// Puts a problem's scores where a row is wanted: the exponentials of a kernel that subtracts
// anything but the row's own maximum then leave fp32's range, or come close.
#pragma once

#include <functional>

#include "runtime/reference/oracle.hpp"

namespace attune::gpu_test {

// What a row's scores are raised by, in powers of two of their exponentials.
struct ScoreOffsets {
  double early = 0;  // keys below `late_from`
  double late = 0;   // the others
};
// By batch entry times heads and head, and by query.
using OffsetsOfRow = std::function<ScoreOffsets(int head, int q_idx)>;

// Of a row in eight of three heads in four: what a fixed reference cannot hold, for each head in
// another way.
ScoreOffsets beyond_in_three_of_four_heads(int head, int q_idx);

// The head dim that no offset uses: zero in each query, one in each key.
inline constexpr int kSpareDim = 2;

// Takes the first three head dims; two of them are not used together by any score, so that large
// offsets never cancel each other.
void offset_scores(const AttentionSpec& spec, HostProblem& problem, int late_from,
                   const OffsetsOfRow& offsets);

}  // namespace attune::gpu_test
