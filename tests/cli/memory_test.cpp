// Problems that no memory holds are refused before anything is filled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

constexpr const char* kLong = "heads=8,q_len=100000000";
constexpr const char* kLargest = "batch=65536,heads=4096,q_len=268435456";
constexpr const char* kOneRow = "heads=1,q_len=1,kv_len=268435456,batch=4096";

struct TooLarge {
  const char* what;
  std::vector<std::string> arguments;
};

class TooLargeProblems : public testing::TestWithParam<TooLarge> {};

TEST_P(TooLargeProblems, AreBadInputThatSaysWhatTheyTake) {
  std::vector<std::string> arguments = GetParam().arguments;
  arguments.insert(arguments.end(), {"--device", "cpu"});
  const Outcome outcome = attune(arguments);
  if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[memory-short]"));
  EXPECT_THAT(outcome.err, HasSubstr("B of main memory, and "));
  EXPECT_THAT(outcome.err, HasSubstr("a smaller shape"));
}

INSTANTIATE_TEST_SUITE_P(
    , TooLargeProblems,
    testing::Values(TooLarge{"RunLong", {"run", "causal", "--shape", kLong}},
                    TooLarge{"RunLargest", {"run", "causal", "--shape", kLargest}},
                    TooLarge{"RunAllRows", {"run", "causal", "--rows", "0", "--shape", kLargest}},
                    TooLarge{"RunOneRow", {"run", "full", "--shape", kOneRow}},
                    TooLarge{"BenchLargest",
                             {"bench", "causal", "--cache", "none", "--shape", kLargest}},
                    TooLarge{"TuneLargest",
                             {"tune", "causal", "--shape", kLargest, "--cache",
                              scratch_directory() + "/large.db"}},
                    TooLarge{"TuneInProcess",
                             {"tune", "causal", "--in-process", "--shape", kLargest, "--cache",
                              scratch_directory() + "/large.db"}},
                    TooLarge{"ExplainTensors", {"explain", "document", "--shape", kLargest}}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(LargeProblems, WithoutTensorsAreExplainedAllTheSame) {
  for (const char* spec : {"causal", "sliding_window"}) {
    const Outcome outcome =
        attune({"explain", spec, "--shape", "batch=65536,heads=4096,q_len=65536", "--target",
                "sm_80", "--device", "cpu"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
}

}  // namespace
}  // namespace attune::cli_test
