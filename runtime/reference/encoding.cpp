#include "runtime/reference/encoding.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attune {
namespace {

// A small float format. fp8 e4m3 has no infinity: its highest exponent holds numbers, all ones is
// NaN.
struct Format {
  int exponent_bits, mantissa_bits;
  bool infinities;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t nan() const { return (1u << (exponent_bits + mantissa_bits)) - 1; }
};
constexpr Format kF16 = {5, 10, true};
constexpr Format kFp8E4m3 = {4, 3, false};

std::uint32_t to_bits(const Format& format, double value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(std::signbit(value))
                             << (format.exponent_bits + format.mantissa_bits);
  const double size = std::abs(value);
  if (std::isnan(value)) return sign | format.nan();
  if (std::isinf(value)) {
    const std::uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    return sign | (format.infinities ? infinity : format.nan());
  }
  if (size == 0) return sign;
  int exponent = 0;
  std::frexp(size, &exponent);
  const int biased = std::max(exponent - 1 + format.bias(), 0);
  // The unit in the last place, subnormals' included.
  const int unit = std::max(biased, 1) - format.bias() - format.mantissa_bits;
  const auto units = static_cast<std::uint32_t>(std::ldexp(size, -unit));
  const std::uint32_t hidden = biased > 0 ? 1u << format.mantissa_bits : 0;
  return sign | static_cast<std::uint32_t>(biased) << format.mantissa_bits | (units - hidden);
}

double from_bits(const Format& format, std::uint32_t bits) {
  const std::uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const std::uint32_t top = (1u << format.exponent_bits) - 1;
  const std::uint32_t biased = (bits >> format.mantissa_bits) & top;
  const double sign = (bits >> (format.exponent_bits + format.mantissa_bits)) & 1 ? -1 : 1;
  if (format.infinities && biased == top) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (!format.infinities && (bits & format.nan()) == format.nan()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const std::uint32_t hidden = biased > 0 ? 1u << format.mantissa_bits : 0;
  const int unit = std::max(static_cast<int>(biased), 1) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(mantissa + hidden, unit);
}

template <typename Bits, typename Convert>
void encode_as(const double* values, std::size_t count, std::uint8_t* bytes,
               const Convert& convert) {
  for (std::size_t i = 0; i < count; ++i) {
    const Bits bits = static_cast<Bits>(convert(values[i]));
    std::memcpy(bytes + i * sizeof bits, &bits, sizeof bits);
  }
}

template <typename Bits, typename Convert>
void decode_as(const std::uint8_t* bytes, std::size_t count, double* values,
               const Convert& convert) {
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    values[i] = convert(bits);
  }
}

std::uint32_t float_bits(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value));
}
double from_float_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

void encode(DType dtype, const double* values, std::size_t count, std::uint8_t* bytes) {
  switch (dtype) {
    case DType::kF32:
      return encode_as<std::uint32_t>(values, count, bytes, float_bits);
    case DType::kBf16:  // the upper half of a float
      return encode_as<std::uint16_t>(values, count, bytes,
                                      [](double value) { return float_bits(value) >> 16; });
    case DType::kF16:
      return encode_as<std::uint16_t>(values, count, bytes,
                                      [](double value) { return to_bits(kF16, value); });
    case DType::kFp8E4m3:
      return encode_as<std::uint8_t>(values, count, bytes,
                                     [](double value) { return to_bits(kFp8E4m3, value); });
  }
}

void decode(DType dtype, const std::uint8_t* bytes, std::size_t count, double* values) {
  switch (dtype) {
    case DType::kF32:
      return decode_as<std::uint32_t>(bytes, count, values, from_float_bits);
    case DType::kBf16:
      return decode_as<std::uint16_t>(bytes, count, values, [](std::uint16_t bits) {
        return from_float_bits(static_cast<std::uint32_t>(bits) << 16);
      });
    case DType::kF16:
      return decode_as<std::uint16_t>(bytes, count, values,
                                      [](std::uint16_t bits) { return from_bits(kF16, bits); });
    case DType::kFp8E4m3:
      return decode_as<std::uint8_t>(bytes, count, values,
                                     [](std::uint8_t bits) { return from_bits(kFp8E4m3, bits); });
  }
}

}  // namespace attune
