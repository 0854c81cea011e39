#include "runtime/reference/element_bits.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace attune {
namespace {

// A binary floating-point format of at most 16 bits, IEEE 754 but for fp8 e4m3, which has no
// infinity and one NaN (Micikevicius et al. 2022).
struct Format {
  int exponent_bits, fraction_bits;
  bool has_infinity;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned exponent_mask() const { return (1u << exponent_bits) - 1; }
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {5, 10, true};
    case DType::kFp8E4m3:
      return {4, 3, false};
    default:
      return {8, 7, true};
  }
}

unsigned encode_one(const Format& format, double value) {
  const unsigned sign =
      std::signbit(value) ? 1u << (format.exponent_bits + format.fraction_bits) : 0;
  const unsigned top = format.exponent_mask() << format.fraction_bits;
  if (std::isnan(value)) return sign | top | ((1u << format.fraction_bits) - 1);
  if (std::isinf(value)) return sign | top;
  if (value == 0) return sign;
  int exponent = std::max(std::ilogb(value), 1 - format.bias());
  const auto scaled =
      static_cast<unsigned>(std::ldexp(std::abs(value), format.fraction_bits - exponent));
  // The hidden bit is set in all but subnormal numbers; adding it to the field below makes the
  // exponent.
  return sign |
         ((static_cast<unsigned>(exponent + format.bias() - 1) << format.fraction_bits) + scaled);
}

double decode_one(const Format& format, unsigned bits) {
  const unsigned fraction_mask = (1u << format.fraction_bits) - 1;
  const unsigned fraction = bits & fraction_mask;
  const unsigned exponent = bits >> format.fraction_bits & format.exponent_mask();
  const double sign = bits >> (format.fraction_bits + format.exponent_bits) & 1 ? -1 : 1;
  if (exponent == format.exponent_mask()) {
    if (format.has_infinity) return fraction == 0 ? sign * INFINITY : NAN;
    if (fraction == fraction_mask) return NAN;
  }
  const int hidden = exponent == 0 ? 0 : 1 << format.fraction_bits;
  const int power = static_cast<int>(std::max(exponent, 1u)) - format.bias() - format.fraction_bits;
  return sign * std::ldexp(static_cast<double>(hidden) + fraction, power);
}

}  // namespace

std::vector<std::byte> encode(DType dtype, std::span<const double> values) {
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  std::vector<std::byte> bytes(values.size() * width);
  const Format format = format_of(dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      const auto narrow = static_cast<float>(values[i]);
      std::memcpy(&bytes[i * width], &narrow, width);
    } else {
      const auto bits = static_cast<std::uint16_t>(encode_one(format, values[i]));
      std::memcpy(&bytes[i * width], &bits, width);  // little-endian: the low byte first
    }
  }
  return bytes;
}

std::vector<double> decode(DType dtype, std::span<const std::byte> bytes) {
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  std::vector<double> values(bytes.size() / width);
  const Format format = format_of(dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      float narrow = 0;
      std::memcpy(&narrow, &bytes[i * width], width);
      values[i] = narrow;
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &bytes[i * width], width);
      values[i] = decode_one(format, bits);
    }
  }
  return values;
}

std::vector<double> decode(expr::TensorType type, std::span<const std::byte> bytes) {
  const auto each = [&]<typename Element>(Element) {
    std::vector<double> values(bytes.size() / sizeof(Element));
    for (std::size_t i = 0; i < values.size(); ++i) {
      Element element;
      std::memcpy(&element, &bytes[i * sizeof element], sizeof element);
      values[i] = static_cast<double>(element);
    }
    return values;
  };
  switch (type) {
    case expr::TensorType::kInt32:
      return each(std::int32_t{});
    case expr::TensorType::kFloat32:
      return decode(DType::kF32, bytes);
    case expr::TensorType::kFloat16:
      return decode(DType::kF16, bytes);
    case expr::TensorType::kBFloat16:
      return decode(DType::kBf16, bytes);
    case expr::TensorType::kBool:
      break;
  }
  std::vector<double> values = each(std::uint8_t{});
  for (double& value : values) value = value != 0 ? 1 : 0;
  return values;
}

}  // namespace attune
