#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/jit/compiler.hpp"

namespace attune {
namespace {

class NvrtcCompiler : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_nvrtc_compiler();
    if (!opened.ok()) GTEST_SKIP() << opened.error().message;
    compiler_ = std::move(opened).value();
  }
  std::unique_ptr<Compiler> compiler_;
};

TEST_F(NvrtcCompiler, MakesACubinAndReportsItsResources) {
  const std::string source = R"(extern "C" __global__ void reverse(float* data) {
  __shared__ float tile[64];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[63 - threadIdx.x];
})";
  const auto kernel = compiler_->compile(source, "reverse", Target::kSm90a);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  ASSERT_GE(kernel->image.size(), 4u);
  EXPECT_EQ(std::string(kernel->image.begin(), kernel->image.begin() + 4),
            "\x7f"
            "ELF");
  EXPECT_GT(kernel->registers, 0);
  EXPECT_EQ(kernel->static_shared_bytes, 256);
  EXPECT_EQ(kernel->spill_store_bytes, 0);
  EXPECT_GT(kernel->compile_seconds, 0);
}

TEST_F(NvrtcCompiler, AFailureShowsCommandLogAndNumberedSource) {
  const auto kernel = compiler_->compile("extern \"C\" __global__ void k() {\n  nonsense;\n}\n",
                                         "k", Target::kSm80);
  ASSERT_FALSE(kernel.ok());
  EXPECT_EQ(kernel.error().id, "compile-failed");
  EXPECT_NE(kernel.error().detail.find("--gpu-architecture=sm_80"), std::string::npos);
  EXPECT_NE(kernel.error().detail.find("\"nonsense\" is undefined"), std::string::npos);
  EXPECT_NE(kernel.error().detail.find("    2 |   nonsense;"), std::string::npos);
}

TEST_F(NvrtcCompiler, AMissingEntryFunctionIsAnError) {
  const auto kernel =
      compiler_->compile("extern \"C\" __global__ void k() {}", "other", Target::kSm80);
  ASSERT_FALSE(kernel.ok());
  EXPECT_NE(kernel.error().message.find("no entry function `other`"), std::string::npos);
}

TEST_F(NvrtcCompiler, KnowsItsTargets) {
  EXPECT_TRUE(compiler_->supports(Target::kSm80));
  EXPECT_TRUE(compiler_->supports(Target::kSm90a));
  EXPECT_FALSE(compiler_->supports(Target::kCpu));
  // Keys of caches hold the build's number, too.
  EXPECT_THAT(compiler_->identity(), testing::MatchesRegex(R"(nvrtc [0-9]+\.[0-9]+\.[0-9]+)"));
}

TEST(OpenNvrtc, AMissingLibraryIsUnavailableAndSaysWhatWasTried) {
  ASSERT_EQ(setenv("ATTUNE_NVRTC", "/nonexistent/libnvrtc.so", 1), 0);
  const auto opened = open_nvrtc_compiler();
  unsetenv("ATTUNE_NVRTC");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(opened.error().detail.find("/nonexistent/libnvrtc.so"), std::string::npos);
}

TEST_F(NvrtcCompiler, LeavesOutWhatNoKernelNames) {
  const auto kernel = compiler_->compile("nonsense", "k", Target::kSm80);
  ASSERT_FALSE(kernel.ok());
  EXPECT_NE(kernel.error().detail.find("--minimal"), std::string::npos);
}

TEST(OpenNvrtc, OptionsThatItIsTooOldForAreNotUsed) {
  ASSERT_EQ(setenv("ATTUNE_NVRTC", OLD_NVRTC, 1), 0);
  const auto opened = open_nvrtc_compiler();
  unsetenv("ATTUNE_NVRTC");
  ASSERT_TRUE(opened.ok()) << render(opened.error());
  EXPECT_EQ((*opened)->identity(), "nvrtc 12.0.140");
  const auto kernel = (*opened)->compile("", "k", Target::kSm90a);
  ASSERT_FALSE(kernel.ok());
  EXPECT_NE(kernel.error().message.find("no cubin came out"), std::string::npos)
      << render(kernel.error());
}

}  // namespace
}  // namespace attune
