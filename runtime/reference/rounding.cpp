#include <cmath>
#include <limits>

#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

// Nearest value with `digits` significant bits and smallest normal exponent `min_exponent` (frexp's
// convention). nearbyint rounds ties to even.
double round_bits(double value, int digits, int min_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int step = std::max(exponent, min_exponent) - digits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
}

double overflow(double value, double largest, double beyond) {
  return std::abs(value) > largest ? std::copysign(beyond, value) : value;
}

}  // namespace

double round_to(DType dtype, double value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (dtype) {
    case DType::kF16:
      return overflow(round_bits(value, 11, -13), 65504, kInfinity);
    case DType::kBf16:
      return static_cast<float>(round_bits(value, 8, -125));
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kFp8E4m3:
      break;
  }
  return overflow(round_bits(value, 4, -5), 448, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace attune
