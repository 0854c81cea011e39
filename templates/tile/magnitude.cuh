// Scores that may be of any magnitude which fp32 holds, as those to which additive masks bring -1e9
// or the lowest float. Multiplied by log2(e) they would be rounded by more than exp2 has room for,
// or overflow. So the references of their rows are scores themselves, as score_core() has them, and
// are subtracted before anything is multiplied.
//
// Not where a score is bounded, or adds a line along the keys: what counts beside a row's largest
// score is then where the keys are near, and small.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/rounded.cuh"

namespace att {

constexpr bool kAnyMagnitude =
    spec::kHasScore && !kScoreIsLogistic && !(kScoreIsLine && kScoreVariesByKey);

// Of what references and their differences are in: elsewhere in log2 units already.
constexpr float kReferenceUnit = kAnyMagnitude ? kScoreMultiplier * kLog2E : 1.0f;
ATT_FN float as_log2(float x) { return kReferenceUnit == 1.0f ? x : x * kReferenceUnit; }
ATT_FN float from_log2(float x) { return kReferenceUnit == 1.0f ? x : x * (1.0f / kReferenceUnit); }

// With kAnyMagnitude: a score less its reference, in log2 units. A product that made the score must
// not be rounded only here, or the largest score would not be its own reference.
ATT_FN float log2_above(float score, float reference) {
  return rounded_sum(score, -reference) * kReferenceUnit;
}

// With kAnyMagnitude: the score that a reference stands for.
ATT_FN float score_of_reference(float x) { return x * kScoreMultiplier + kScoreOffset; }

}  // namespace att
