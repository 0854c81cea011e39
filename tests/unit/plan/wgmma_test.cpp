#include "generator/plan/wgmma.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Wgmma, NumbersTheOperandsOfARegisterChain) {
  const std::string text = wgmma_function({.name = "multiply",
                                           .element = "bf16",
                                           .columns = 16,
                                           .steps = 5,
                                           .accumulates = false,
                                           .a_in_registers = true,
                                           .transposes_b = true});
  EXPECT_THAT(text, HasSubstr("multiply(float (&d)[8], const unsigned (&a)[5][4], unsigned b)"));
  // D is %0 to %7, A %8 to %27, then B and what it grows by.
  EXPECT_THAT(text, HasSubstr("add.u32 low, %28, %29 * 0 + %30 * 0;"));
  EXPECT_THAT(text, HasSubstr("add.u32 low, %28, %29 * 3 + %30 * 0;"));
  EXPECT_THAT(text, HasSubstr("add.u32 low, %28, %29 * 0 + %30 * 1;"));
  EXPECT_THAT(text, HasSubstr("m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                              "{%24, %25, %26, %27}, b, p, 1, 1, 1;"));
  // The first product alone starts from zero, and D is no input.
  EXPECT_LT(text.find("setp.ne.b32 p, 0, 0;"), text.find("wgmma.mma_async"));
  EXPECT_GT(text.find("setp.ne.b32 p, 1, 0;"), text.find("wgmma.mma_async"));
  EXPECT_THAT(text, HasSubstr("\"=f\"(d[7])"));
  EXPECT_THAT(text, HasSubstr("\"r\"(a[4][3]), \"r\"(b)"));
}

TEST(Wgmma, TakesAFromSharedMemoryByDescriptor) {
  const std::string text = wgmma_function({.name = "multiply",
                                           .element = "f16",
                                           .columns = 32,
                                           .steps = 2,
                                           .accumulates = true,
                                           .a_in_registers = false,
                                           .transposes_b = false});
  EXPECT_THAT(text, HasSubstr("multiply(float (&d)[16], unsigned a, unsigned b)"));
  EXPECT_THAT(text, HasSubstr("add.u32 low, %16, %20 * 1 + %21 * 0;\\nmov.b64 a,"));
  EXPECT_THAT(text, HasSubstr("add.u32 low, %17, %18 * 1 + %19 * 0;\\nmov.b64 b,"));
  EXPECT_THAT(text, HasSubstr("}, a, b, p, 1, 1, 0, 0;"));
  EXPECT_THAT(text, HasSubstr("\"+f\"(d[15])"));
  EXPECT_THAT(text, Not(HasSubstr("setp.ne.b32 p, 0, 0;")));
}

}  // namespace
}  // namespace attune
