// What a command says and returns when a compiler is missing, too old, or not for the target.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kNowhere = "/nonexistent/module.so";
using Environment = std::map<std::string, std::string>;

Outcome compile(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  std::vector<std::string> all = {"compile", "--cache", "none"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return attune(all, {.environment = environment});
}

bool has(const char* compiler) {
  const Json listed = Json::parse(attune({"devices", "--json"}).out, nullptr, false);
  for (const Json& one : listed["devices"]) {
    if (one["name"] == compiler) return one["present"].get<bool>();
  }
  return false;
}

TEST(Compilers, AMissingLlvmIsNamedWithWhatToInstall) {
  const Outcome outcome =
      compile({"causal", "--target", "cpu"}, {{"ATTUNE_LLVM_MODULE", kNowhere}});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("[llvm-missing]"));
  EXPECT_THAT(outcome.err, HasSubstr("libclang-19-dev"));
}

TEST(Compilers, ALibraryThatIsNoModuleOfThisAttuneIsRefused) {
  for (const char* library : {"libm.so.6", OLD_LLVM_MODULE}) {
    const Outcome outcome =
        compile({"causal", "--target", "cpu"}, {{"ATTUNE_LLVM_MODULE", library}});
    EXPECT_EQ(outcome.code, 3) << library;
    EXPECT_THAT(outcome.err, HasSubstr("[llvm-module-version]")) << library;
  }
}

TEST(Compilers, WithoutAnyTheOneToInstallForAGpuIsNamed) {
  const Outcome outcome =
      compile({"causal", "--target", "sm_90a"},
              {{"ATTUNE_LLVM_MODULE", kNowhere}, {"ATTUNE_NVRTC", "/nonexistent/libnvrtc.so"}});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("[nvrtc-missing]"));
}

TEST(Compilers, LlvmServesWhereNvrtcIsMissing) {
  if (!has("llvm")) GTEST_SKIP() << "the LLVM module is not here";
  const Outcome outcome = compile({"causal", "--target", "sm_80", "--json"},
                                  {{"ATTUNE_NVRTC", "/nonexistent/libnvrtc.so"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json kernel = Json::parse(outcome.out)["kernels"].at(0);
  EXPECT_THAT(kernel["compiler"].get<std::string>(), StartsWith("clang "));
}

TEST(Compilers, LlvmsOtherOrderIsAskedForByName) {
  if (!has("llvm")) GTEST_SKIP() << "the LLVM module is not here";
  const Outcome outcome =
      compile({"causal", "--target", "sm_80", "--compiler", "llvm-list", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json kernel = Json::parse(outcome.out)["kernels"].at(0);
  EXPECT_THAT(kernel["compiler"].get<std::string>(), StartsWith("clang-list "));
}

TEST(Compilers, NvrtcServesWhereLlvmIsMissing) {
  if (!has("nvrtc")) GTEST_SKIP() << "NVRTC is not here";
  const Outcome outcome =
      compile({"causal", "--target", "sm_80", "--json"}, {{"ATTUNE_LLVM_MODULE", kNowhere}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json kernel = Json::parse(outcome.out)["kernels"].at(0);
  EXPECT_THAT(kernel["compiler"].get<std::string>(), StartsWith("nvrtc "));
}

TEST(Compilers, ATargetThatTheChosenOneDoesNotBuildForIsSaid) {
  if (!has("nvrtc")) GTEST_SKIP() << "NVRTC is not here";
  const Outcome outcome = compile({"causal", "--target", "cpu", "--compiler", "nvrtc"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("does not build for cpu [compiler-no-target]"));
  EXPECT_THAT(outcome.err, HasSubstr("--compiler llvm"));
}

TEST(Compilers, AnLlvmOlderThanTheTargetIsSaid) {
  if (!has("llvm")) GTEST_SKIP() << "the LLVM module is not here";
  const Outcome outcome = compile({"causal", "--target", "sm_120", "--compiler", "llvm"});
  if (outcome.code == 0) GTEST_SKIP() << "this LLVM knows it";
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("does not build for sm_120 [compiler-no-target]"));
  EXPECT_THAT(outcome.err, HasSubstr("a newer LLVM, or compile with NVRTC"));
}

TEST(Compilers, WhatTheCpuFamilyCannotDoIsBadInput) {
  const std::string spec = scratch_file(
      "fp8.yaml", "attune: 1\nname: eight\ndtype: fp8_e4m3\nhead_dim: 64\nmask: causal\n");
  const Outcome outcome = compile({spec, "--target", "cpu"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the cpu family stores fp32, bf16 or fp16, not fp8_e4m3"));
}

TEST(Compilers, APassThatNoFamilyHasIsBadInput) {
  const std::string spec =
      scratch_file("learned.yaml",
                   "attune: 1\nname: learned\ndtype: fp32\nhead_dim: 64\ndeterministic: true\n"
                   "score: score + bias[q_idx, kv_idx]\n"
                   "tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n");
  const Outcome outcome = compile({spec, "--target", "cpu", "--pass", "backward"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no kernel family serves this spec's backward pass on cpu"));
}

}  // namespace
}  // namespace attune::cli_test
