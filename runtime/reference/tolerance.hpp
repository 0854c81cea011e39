// What a family's arithmetic loses, and so how far its results may be from the definition.
// docs/verification.md derives the formulas.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

enum class Arithmetic : std::uint8_t {
  kMatrixUnit,  // the GPU families: P is rounded to the dtype, sums are a matrix unit's, 2^x and
                // log2 x the hardware's approximations. fp32 keeps P, or rounds it and all else
                // that is multiplied to tf32: P's rounding is an error, the inputs' the
                // definition's (operands.hpp)
  kVector,      // the CPU family: fp32 until O is rounded
};
Arithmetic arithmetic_of(Target target);

// Independent errors add up in squares, and so many of their standard deviations are allowed: one
// element of 10^15 is farther out. What has a bound, as a single rounding, is allowed that once.
inline constexpr double kDeviations = 8;
// Relative to fp32's largest rounding, and the root of the mean square of a rounding relative to
// the largest, over all mantissas.
inline constexpr double kFp32Unit = 0x1p-24, kMeanRounding = 0.425;

// tf32 has 11 bits.
inline constexpr double kTf32Unit = 0x1p-11;

// Probabilities below it are not far from what an fp32 sum of 1 cannot hold.
inline constexpr double kNegligible = 0x1p-21;

// Relative errors; absolute where it says so.
struct ErrorModel {
  double product_unit = 0;    // largest rounding of a product of q and k, beside its sum's
  double p_unit = 0;          // largest rounding of an element of P
  double p_smallest = 0;      // absolute, of a subnormal element, where the row's largest is 1
  double o_unit = 0;          // largest rounding of an element of O
  double o_smallest = 0;      // absolute, of a subnormal element
  double truncation = 0;      // of O's sum, a key
  double exponent_reach = 0;  // absolute: how far beyond the scores a reference of them may lie
  double lse_unit = 0;        // of the logarithm and what it is added to
  double lse_smallest = 0;    // absolute
};
ErrorModel error_model(const AttentionSpec& spec, Arithmetic arithmetic);

}  // namespace attune
