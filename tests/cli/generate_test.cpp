// attune generate and attune compile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Generate, WritesOneSelfContainedSource) {
  const Outcome outcome = attune({"generate", "causal", "--target", "sm_80"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("#include")));
  EXPECT_EQ(outcome.out, attune({"generate", "causal", "--target", "sm_80"}).out);
}

TEST(Generate, TheSourceSaysHowToMakeItAgain) {
  for (const char* target : {"sm_80", "sm_90a"}) {
    const Json json = parse(attune({"generate", "causal", "--target", target, "--json"}));
    const auto plan = json["plan"].get<std::string>(), source = json["source"].get<std::string>();
    EXPECT_THAT(source, HasSubstr("//   attune generate causal --plan \"" + plan + "\"\n"));
    const Outcome again = attune({"generate", "causal", "--plan", plan});
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.out, source);
  }
}

TEST(Generate, WritesAFileWholeOrNotAtAll) {
  const std::string path = scratch_directory() + "/kernel.cu";
  const Outcome outcome = attune({"generate", "causal", "--target", "sm_80", "-o", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_EQ(read_file(path), attune({"generate", "causal", "--target", "sm_80"}).out);
  EXPECT_EQ(read_file(path),
            attune({"generate", "causal", "--target", "sm_80", "--output", "-"}).out);
  const Outcome failed = attune(
      {"generate", "causal", "--target", "sm_80", "-o", scratch_directory() + "/none/kernel.cu"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("[write-file]"));
}

TEST(Generate, APlanOfAnotherTargetIsRefused) {
  const Json json = parse(attune({"generate", "causal", "--target", "sm_80", "--json"}));
  const Outcome outcome = attune(
      {"generate", "causal", "--target", "sm_90a", "--plan", json["plan"].get<std::string>()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("[plan-mismatch]"));
}

TEST(Compile, ReportsWhatTheKernelTakes) {
  const Outcome outcome = attune({"compile", "causal", "--target", "sm_80", "--json"});
  if (outcome.code == 3) GTEST_SKIP() << "no compiler for sm_80 is here";
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json kernel = parse(outcome)["kernels"][0];
  EXPECT_GT(kernel["image_bytes"], 0);
  EXPECT_GT(kernel["shared_memory_bytes"], 0);
  EXPECT_GT(kernel["compile_ms"], 0);
  for (const char* field :
       {"registers", "spill_store_bytes", "spill_load_bytes", "parse_ms", "emit_ms"}) {
    EXPECT_TRUE(kernel[field].is_number()) << field;
  }
}

TEST(Compile, WritesTheImage) {
  const std::string path = scratch_directory() + "/kernel.image";
  const Outcome outcome = attune({"compile", "full", "--target", "sm_80", "--json", "-o", path});
  if (outcome.code == 3) GTEST_SKIP() << "no compiler for sm_80 is here";
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read_file(path).size(), parse(outcome)["kernels"][0]["image_bytes"].get<std::size_t>());
}

}  // namespace
}  // namespace attune::cli_test
