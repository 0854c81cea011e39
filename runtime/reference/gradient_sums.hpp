// How the backward oracle counts what roundings make of a sum.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runtime/reference/backward.hpp"
#include "runtime/reference/tolerance.hpp"

namespace attune {

inline constexpr double kAllowedDeviations = 8;
// The largest relative rounding of fp32; the root of the mean square of a rounding relative to the
// largest.
inline constexpr double kLargestFp32Rounding = 0x1p-24, kRmsOfRounding = 0.425;
// Standard deviation of one fp32 rounding; of a special-function unit's result.
inline constexpr double kFp32Rounding = kRmsOfRounding * kLargestFp32Rounding;
inline constexpr double kFunctionRounding = 4 * kFp32Rounding;

inline double square(double x) { return x * x; }

// Largest relative errors; absolute where it says so.
struct Roundings {
  double dtype, smallest;    // of a value in the dtype; absolute, of a subnormal one
  double p;                  // of P and dS; 0 where they stay in fp32
  double truncation;         // of a matrix unit's sum, a term
  double lse, lse_smallest;  // of LSE and the scores' maximum; absolute
};
inline Roundings roundings(DType dtype, Precision precision, bool rounds_p) {
  Roundings r = {.dtype = kLargestFp32Rounding,
                 .smallest = 0x1p-126,
                 .p = 0,
                 .truncation = 0,
                 .lse = 0x1p-22,
                 .lse_smallest = 0x1p-22};
  if (dtype == DType::kF16) r.dtype = 0x1p-11, r.smallest = 0x1p-25;
  if (dtype == DType::kBf16) r.dtype = 0x1p-8;
  if (dtype == DType::kFp8E4m3) r.dtype = 0x1p-4, r.smallest = 0x1p-10;
  if (!rounds_p) return r;
  r.truncation = kLargestFp32Rounding / 16;  // a step is 16 terms
  if (dtype == DType::kF32) {
    r.lse_smallest = 0x1p-21;
    if (precision == Precision::kTf32) {
      r.p = kTf32Unit;
      r.truncation = kLargestFp32Rounding / 8;
    }
    return r;
  }
  r.p = r.dtype;
  // lg2.approx errs by 2^-22, of a sum that a reference may put 40 binary orders below 1.
  r.lse_smallest = 40 * 0x1p-22;
  return r;
}

// A dot product, and the variance that fp32 additions give it, which round partial sums that grow
// like a walk or like a line.
struct Product {
  double sum = 0, variance = 0;
};
inline Product product_of(const double* a, const double* b, int count) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) {
    sum += a[i] * b[i];
    squares += square(a[i] * b[i]);
  }
  return {sum, square(kFp32Rounding) * count * (squares / 2 + square(sum) / 3)};
}

// Elements that are sums, and the variance of what their terms may be off by.
struct Sums {
  explicit Sums(std::size_t size = 0)
      : values(size), variances(size), squares(size), counts(size) {}
  void add(std::size_t at, double term, double variance) {
    values[at] += term;
    variances[at] += variance;
    squares[at] += term * term;
    counts[at] += 1;
  }
  // To the elements from `first` on.
  void add(const Sums& other, std::size_t first = 0) {
    for (std::size_t i = 0; i < other.values.size(); ++i) {
      values[first + i] += other.values[i];
      variances[first + i] += other.variances[i];
      squares[first + i] += other.squares[i];
      counts[first + i] += other.counts[i];
    }
  }
  std::vector<double> values, variances, squares, counts;
};

// P and dS that are subnormal in the dtype or in fp32, and what is made of them, err by their size:
// slopes of hundreds and queries of a thousand make 1e-32 of them.
inline constexpr double kUnderflow = 1e-30;

// `unit`, `smallest`: of the element's own rounding.
inline Expected finished(std::string name, std::size_t width, Sums&& sums, double truncation,
                         double unit, double smallest) {
  Expected expected{
      .name = std::move(name), .width = width, .values = std::move(sums.values), .limits = {}};
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double size = std::abs(expected.values[i]), count = sums.counts[i];
    const double of_sum = square(kFp32Rounding) * count * (sums.squares[i] / 2 + square(size) / 3);
    expected.limits.push_back(unit * size + smallest + kUnderflow +
                              kAllowedDeviations * std::sqrt(sums.variances[i] + of_sum) +
                              truncation * count * std::hypot(size, std::sqrt(sums.squares[i])));
  }
  return expected;
}

}  // namespace attune
