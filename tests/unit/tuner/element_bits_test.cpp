#include "runtime/reference/element_bits.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

std::uint32_t bits_of(DType dtype, double value) {
  const std::vector<double> one{value};
  const auto bytes = encode(dtype, one);
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes.data(), bytes.size());
  return bits;
}

TEST(ElementBits, KnownPatterns) {
  struct Case {
    DType dtype;
    double value;
    std::uint32_t bits;
  };
  for (const Case& c :
       {Case{DType::kF16, 1.0, 0x3c00}, Case{DType::kF16, -2.0, 0xc000},
        Case{DType::kF16, 65504, 0x7bff}, Case{DType::kF16, std::ldexp(1, -24), 0x0001},
        Case{DType::kF16, INFINITY, 0x7c00}, Case{DType::kBf16, 1.0, 0x3f80},
        Case{DType::kBf16, -0.0, 0x8000}, Case{DType::kBf16, 3.140625, 0x4049},
        Case{DType::kFp8E4m3, 448, 0x7e}, Case{DType::kFp8E4m3, std::ldexp(1, -9), 0x01},
        Case{DType::kF32, 1.5, 0x3fc00000}}) {
    EXPECT_EQ(bits_of(c.dtype, c.value), c.bits) << to_string(c.dtype) << ' ' << c.value;
  }
}

TEST(ElementBits, EveryPatternSurvivesBothWays) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kFp8E4m3}) {
    const auto width = static_cast<std::size_t>(element_bytes(dtype));
    for (std::uint32_t bits = 0; bits < (1u << (8 * width)); ++bits) {
      std::vector<std::byte> bytes(width);
      std::memcpy(bytes.data(), &bits, width);
      const double value = decode(dtype, bytes).front();
      if (std::isnan(value)) continue;
      ASSERT_EQ(bits_of(dtype, value), bits) << to_string(dtype);
      ASSERT_EQ(round_to(dtype, value), value) << to_string(dtype) << ": the oracle's idea of it";
    }
  }
}

}  // namespace
}  // namespace attune
