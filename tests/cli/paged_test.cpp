// Problems with pages that commands make up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

std::string paged_spec() {
  const std::string path = scratch_directory() + "/paged.yaml";
  std::ofstream(path) << "attune: 1\nname: paged\ndtype: fp32\nhead_dim: 16\nlayout: paged\n"
                         "mask: causal\n";
  return path;
}

TEST(Paged, RunVerifiesPagesOfAnySize) {
  for (const char* size : {"1", "7", "64"}) {
    const Outcome outcome = attune(
        {"run", paged_spec(), "--shape", "batch=3,heads=4,kv_heads=2,q_len=90,kv_len=100",
         "--page-size", size, "--rows", "0", "--device", "cpu", "--cache", "none", "--json"});
    if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(Json::parse(outcome.out)["ok"].get<bool>());
  }
}

TEST(Paged, SequencesMayBeginAlike) {
  for (const char* prefix : {"1", "64", "70", "1000"}) {
    const Outcome outcome =
        attune({"run", paged_spec(), "--shape", "batch=5,heads=4,kv_heads=2,q_len=10,kv_len=100",
                "--page-size", "8", "--shared-prefix", prefix, "--rows", "0", "--device", "cpu",
                "--cache", "none", "--json"});
    if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(Json::parse(outcome.out)["ok"].get<bool>());
  }
}

TEST(Paged, OtherLayoutsShareNoPages) {
  const Outcome outcome = attune({"run", "causal", "--shape", "heads=1,q_len=16", "--shared-prefix",
                                  "16", "--device", "cpu", "--cache", "none"});
  if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--shared-prefix is given, and causal has layout `bshd`"));
}

TEST(Paged, OtherLayoutsHaveNoPageSize) {
  const Outcome outcome = attune({"run", "causal", "--shape", "heads=1,q_len=16", "--page-size",
                                  "16", "--device", "cpu", "--cache", "none"});
  if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--page-size is given, and causal has layout `bshd`"));
}

TEST(Paged, ThereIsNoBackwardPass) {
  const Outcome outcome = attune({"generate", paged_spec(), "--pass", "backward", "--target", "cpu",
                                  "--shape", "heads=1,q_len=16"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("layout `paged` has no backward kernels yet"));
}

}  // namespace
}  // namespace attune::cli_test
