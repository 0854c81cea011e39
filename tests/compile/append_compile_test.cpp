// Kernels that append to a cache, by both of a GPU's compilers, for GPUs that need not be here.
#include <gtest/gtest.h>

#include <optional>

#include "generator/emit/append.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune {
namespace {

AppendKernel kernel(DType dtype, Rotation rotation, int head_dim, int rotary_dim, Target target,
                    std::optional<DType> cache = {}) {
  return {.dtype = dtype,
          .cache_dtype = cache.value_or(dtype),
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .rotation = rotation,
          .rotary_dim = rotary_dim,
          .target = target};
}

// Chunks of 16 bytes, short ones and single elements.
const AppendKernel kKernels[] = {
    kernel(DType::kBf16, Rotation::kHalf, 128, 128, Target::kSm90a),
    kernel(DType::kF16, Rotation::kInterleaved, 64, 32, Target::kSm120),
    kernel(DType::kF32, Rotation::kHalf, 80, 24, Target::kSm80),
    kernel(DType::kBf16, Rotation::kHalf, 64, 2, Target::kSm80),
    kernel(DType::kF16, Rotation::kNone, 192, 0, Target::kSm80),
    kernel(DType::kBf16, Rotation::kHalf, 128, 128, Target::kSm90a, DType::kFp8E4m3),
    kernel(DType::kF16, Rotation::kInterleaved, 64, 32, Target::kSm80, DType::kFp8E4m3)};

void check_all(Compiler& compiler) {
  for (const AppendKernel& kernel : kKernels) {
    if (!compiler.supports(kernel.target)) continue;
    const auto source = emit_append(kernel);
    ASSERT_TRUE(source.ok()) << render(source.error());
    const auto code = compiler.compile(source->source, source->symbol, kernel.target);
    ASSERT_TRUE(code.ok()) << to_string(kernel) << "\n" << render(code.error());
    EXPECT_EQ(code->spill_store_bytes, 0) << to_string(kernel);
    EXPECT_LE(code->registers, 64) << to_string(kernel) << ": eight CTAs a processor";
  }
}

TEST(AppendCompile, Nvrtc) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  check_all(**compiler);
}

TEST(AppendCompile, Llvm) {
  const auto compiler = open_llvm_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  check_all(**compiler);
}

}  // namespace
}  // namespace attune
