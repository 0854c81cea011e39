#include "runtime/reference/encoding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

std::uint32_t bits_of(DType dtype, double value) {
  std::uint8_t bytes[4] = {};
  encode(dtype, &value, 1, bytes);
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

double value_of(DType dtype, std::uint32_t bits) {
  std::uint8_t bytes[4];
  std::memcpy(bytes, &bits, sizeof bits);
  double value = 0;
  decode(dtype, bytes, 1, &value);
  return value;
}

struct Known {
  DType dtype;
  double value;
  std::uint32_t bits;
};

TEST(Encoding, KnownValues) {
  const double infinity = HUGE_VAL;
  for (const Known& known :
       {Known{DType::kF16, 1, 0x3C00}, Known{DType::kF16, -2, 0xC000},
        Known{DType::kF16, 65504, 0x7BFF}, Known{DType::kF16, infinity, 0x7C00},
        Known{DType::kF16, std::ldexp(1, -24), 0x0001},
        Known{DType::kF16, std::ldexp(1, -14), 0x0400}, Known{DType::kBf16, 1, 0x3F80},
        Known{DType::kBf16, -infinity, 0xFF80}, Known{DType::kF32, 1.5, 0x3FC00000},
        Known{DType::kFp8E4m3, 1, 0x38}, Known{DType::kFp8E4m3, 448, 0x7E},
        Known{DType::kFp8E4m3, std::ldexp(1, -9), 0x01}}) {
    EXPECT_EQ(bits_of(known.dtype, known.value), known.bits) << known.value;
    EXPECT_EQ(value_of(known.dtype, known.bits), known.value) << known.bits;
  }
}

TEST(Encoding, EveryPatternComesBackAndIsWhatRoundingGives) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kFp8E4m3}) {
    const std::uint32_t patterns = 1u << (8 * element_bytes(dtype));
    for (std::uint32_t bits = 0; bits < patterns; ++bits) {
      const double value = value_of(dtype, bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(value_of(dtype, bits_of(dtype, value))));
        continue;
      }
      ASSERT_EQ(bits_of(dtype, value), bits) << value;
      ASSERT_EQ(round_to(dtype, value), value) << bits;
    }
  }
}

TEST(Encoding, PoisonIsNaN) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kF32, DType::kFp8E4m3}) {
    EXPECT_TRUE(std::isnan(value_of(dtype, 0xFFFFFFFF)));
  }
}

}  // namespace
}  // namespace attune
