// examples/serve: chunks, trees, preemption and pages change no token, and what computes something
// else is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

// The number that stands before `what` in a summary; -1: there is none.
int number_before(const std::string& summary, const std::string& what) {
  std::smatch match;
  return std::regex_search(summary, match, std::regex("([0-9]+) " + what)) ? std::stoi(match[1])
                                                                           : -1;
}

class Serve : public testing::Test {
 protected:
  void SetUp() override {
    if (attune({"--requests", "1"}).code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  }
  // With room for `tokens` in pages of `page_size`.
  static Outcome serve(int seed, int page_size, int tokens) {
    return attune({"--seed", std::to_string(seed), "--page-size", std::to_string(page_size),
                   "--pages", std::to_string((tokens + page_size - 1) / page_size)});
  }
  // With the example's spec, `from` replaced.
  static Outcome serve_with(const std::string& from, const std::string& to) {
    std::string spec = read_file("examples/serve/attention.yaml");
    const std::size_t at = spec.find(from);
    EXPECT_NE(at, spec.npos) << from;
    spec.replace(at, from.size(), to);
    return attune({"--spec", scratch_file("other.yaml", spec)});
  }
};

TEST_F(Serve, TokensAreThoseOfTheOracleWithFewPagesAndMany) {
  for (const int page_size : {1, 3, 16}) {
    for (const int seed : {1, 2, 3}) {
      for (const bool is_small : {true, false}) {
        SCOPED_TRACE(testing::Message() << "page size " << page_size << ", seed " << seed
                                        << (is_small ? ", few pages" : ", many pages"));
        const Outcome outcome = serve(seed, page_size, is_small ? 160 : 2000);
        EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr("0 requests differ (right)"));
        EXPECT_EQ(number_before(outcome.out, "requests, "), 24);
        EXPECT_GT(number_before(outcome.out, "chunks of prompts"), 0);
        EXPECT_GT(number_before(outcome.out, "decodes"), 0);
        EXPECT_GT(number_before(outcome.out, "trees"), 0);
        EXPECT_GT(number_before(outcome.out, "steps had all three"), 0);
        EXPECT_GT(number_before(outcome.out, "of [0-9]+ drafted tokens accepted"), 0);
        if (is_small) {
          EXPECT_GT(number_before(outcome.out, "preemptions"), 0) << outcome.out;
        } else {
          EXPECT_EQ(number_before(outcome.out, "preemptions"), 0) << outcome.out;
        }
      }
    }
  }
}

TEST_F(Serve, OracleFindsWhatComputesSomethingElse) {
  const std::string sees = "kv_idx < kv_len - q_len or sees[q_idx, kv_idx - (kv_len - q_len)]";
  const std::pair<std::string, std::string> kFaults[] = {
      {sees, "causal"},                                // a node sees its siblings
      {sees, "kv_idx != 7 and (" + sees + ")"},        // a token that nobody sees
      {"(kv_len - q_len)]", "(kv_len - q_len) - 1]"},  // what the token before is to see
      {"passes:", "softmax_scale: 0.1768\npasses:"},   // 1 / sqrt(32) is 0.176777
  };
  for (const auto& [from, to] : kFaults) {
    const Outcome outcome = serve_with(from, to);
    EXPECT_EQ(outcome.code, 1) << to << '\n' << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("(WRONG)")) << to;
  }
}

TEST_F(Serve, IsTheSameEachTimeAndAnotherWithAnotherSeed) {
  const Outcome outcome = attune({"--verbose"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step    1 "));
  EXPECT_THAT(outcome.out, HasSubstr(" prefill"));
  EXPECT_THAT(outcome.out, HasSubstr(" tree, "));
  EXPECT_EQ(attune({"--verbose"}).out, outcome.out);
  EXPECT_NE(attune({"--verbose", "--seed=7"}).out, outcome.out);
}

TEST_F(Serve, InterruptedItEndsAfterTheStep) {
  Terminal terminal({"--verbose", "--requests", "100000"});
  ASSERT_TRUE(terminal.read_until("step    1 ")) << terminal.finish().out;
  terminal.type("\x03");
  const Outcome outcome = terminal.finish();
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("interrupted after"));
  EXPECT_THAT(outcome.out, HasSubstr("0 requests differ (right)"));
}

TEST_F(Serve, SaysWhatIsWrongWithItsInput) {
  const std::pair<std::vector<std::string>, const char*> kInputs[] = {
      {{"--page", "5"}, "--page is no option; serve --help"},
      {{"--requests", "0"}, "--requests takes a number from 1 to 100000, not 0"},
      {{"--pages=5x"}, "not 5x"},
      {{"--seed"}, "--seed takes a value"},
      {{"--verbose=1"}, "--verbose takes no value"},
      {{"--pages", "2"}, "pages of 16, there are 2"},
      {{"--device", "cuda:0"}, "--device is cpu, there is no model for cuda:0 yet"},
      {{"--spec", "causal"}, "causal: the model is fp32, the spec's dtype is not"},
  };
  for (const auto& [arguments, message] : kInputs) {
    const Outcome outcome = attune(arguments);
    EXPECT_EQ(outcome.code, 2) << message << '\n' << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.out, Not(HasSubstr("served"))) << message;
  }
  const std::string no_tree = scratch_file(
      "no_tree.yaml",
      "attune: 1\nname: plain\ndtype: fp32\nhead_dim: 32\nlayout: paged\nmask: causal\n");
  const Outcome outcome = attune({"--spec", no_tree});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("plain: the model has one tensor, sees"));

  const Outcome help = attune({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--page-size"));
}

}  // namespace
}  // namespace attune::cli_test
