// Ctrl-C in the middle of `tune` and `sweep`, and what they show while they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <map>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two problems, of which the second takes seconds to compile: an interrupt in the first is never
// too late.
constexpr const char* kShape = "heads=2,q_len=512";
constexpr const char* kCtrlC = "\x03";

class Interrupt : public testing::Test {
 protected:
  void SetUp() override {
    if (attune({"compile", "causal", "--target", "cpu"}).code == 3)
      GTEST_SKIP() << "no compiler for the CPU is here";
  }
  static std::vector<std::string> with(std::vector<std::string> arguments,
                                       const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // How often each plan of `causal` was measured.
  static std::map<std::string, int> measured(const std::string& cache) {
    const Json shown = parse(attune({"cache", "show", "causal", "--cache", cache, "--json"}));
    std::map<std::string, int> times;
    for (const Json& problem : shown["problems"]) {
      for (const Json& one : problem["measured"]) ++times[one["plan"].get<std::string>()];
    }
    return times;
  }
};

TEST_F(Interrupt, TuneStopsCleanlyAndGoesOnWhereItWas) {
  const std::string cache = scratch_directory() + "/interrupted.db";
  const std::vector<std::string> tune = {"tune", "causal",   "full", "--shape",
                                         kShape, "--device", "cpu",  "--max-candidates",
                                         "3",    "--cache",  cache};
  Terminal terminal(tune);
  ASSERT_TRUE(terminal.read_until("best ")) << terminal.finish().out;
  terminal.type(kCtrlC);
  const Outcome stopped = terminal.finish();
  EXPECT_EQ(stopped.code, 1) << stopped.out;
  EXPECT_THAT(stopped.out, HasSubstr("candidates  measured")) << "the best of what was measured";
  EXPECT_THAT(stopped.out, HasSubstr("the same command goes on from there"));
  EXPECT_EQ(attune({"cache", "verify", "--cache", cache}).code, 0);
  for (const auto& entry : std::filesystem::directory_iterator(scratch_directory())) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("interrupted.db-journal")));
  }
  const std::map<std::string, int> before = measured(cache);
  EXPECT_FALSE(before.empty());

  const Json results = parse(attune(with(tune, {"--json"})))["results"];
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]["measured"].get<int>() + results[0]["from_cache"].get<int>() +
                results[0]["rejected"].get<int>(),
            3);
  const std::map<std::string, int> after = measured(cache);
  for (const auto& [plan, times] : before) {
    ASSERT_TRUE(after.contains(plan)) << plan;
    EXPECT_LE(times, 2) << "once, and perhaps in a final that was cut short: " << plan;
    EXPECT_GE(after.at(plan), times) << plan;
    EXPECT_LE(after.at(plan), times + 1) << "once more, in the whole final: " << plan;
  }
}

TEST_F(Interrupt, SweepStopsCleanlyAndGoesOnWhereItWas) {
  const std::string directory = scratch_directory() + "/interrupted";
  ASSERT_EQ(
      attune({"sweep", "plan", directory, "causal", "full", "prefix_lm", "--shape", kShape}).code,
      0);
  const std::vector<std::string> run = {
      "sweep", "run", directory, "--device", "cpu", "--max-candidates", "3"};
  Terminal terminal(run);
  // The first problem is done.
  ASSERT_TRUE(terminal.read_until(" 1/3 ")) << terminal.finish().out;
  ASSERT_TRUE(terminal.read_until(" left, best ")) << terminal.finish().out;
  terminal.type(kCtrlC);
  const Outcome stopped = terminal.finish();
  EXPECT_EQ(stopped.code, 1) << stopped.out;
  EXPECT_THAT(stopped.out, HasSubstr("the same command goes on from there"));
  const int done = parse(attune({"sweep", "status", directory, "--json"}))["tuned"];
  EXPECT_GE(done, 1);
  EXPECT_LT(done, 3);

  const Json rest = parse(attune(with(run, {"--json"})));
  EXPECT_EQ(rest["before"], done);
  EXPECT_EQ(rest["tuned"], 3 - done);
  EXPECT_EQ(rest["stopped"], false);
  const std::string merged = directory + "/all.db";
  ASSERT_EQ(attune({"sweep", "merge", directory, "--cache", merged}).code, 0);
  EXPECT_EQ(attune({"cache", "verify", "--cache", merged}).code, 0);
  EXPECT_EQ(parse(attune({"cache", "ls", "--cache", merged, "--json"}))["problems"].size(), 3u);
}

TEST_F(Interrupt, AKilledSweepLosesAndRepeatsNothing) {
  const std::string directory = scratch_directory() + "/killed";
  ASSERT_EQ(attune({"sweep", "plan", directory, "causal", "full", "--shape", kShape}).code, 0);
  const std::vector<std::string> run = {
      "sweep", "run", directory, "--device", "cpu", "--max-candidates", "3"};
  Terminal terminal(run);
  ASSERT_TRUE(terminal.read_until(" 1/2 ")) << terminal.finish().out;
  terminal.kill();
  EXPECT_EQ(terminal.finish().code, 128 + SIGKILL);
  const std::string results = directory + "/shard-1-of-1-gpu0.db";
  const std::map<std::string, int> before = measured(results);
  EXPECT_GE(before.size(), 3u) << "all of the first problem's";

  const Json rest = parse(attune(with(run, {"--json"})));
  EXPECT_EQ(rest["before"], 1);
  EXPECT_EQ(rest["tuned"], 1);
  EXPECT_EQ(measured(results), before) << "the problem that was done is not touched again";
  EXPECT_EQ(attune({"cache", "verify", "--cache", results}).code, 0);
}

// On a terminal of 80 columns the end of a long line is cut off.
TEST_F(Interrupt, ASweepsBarShowsTheBestSoFar) {
  const std::string sweep = scratch_directory() + "/bar";
  ASSERT_EQ(attune({"sweep", "plan", sweep, "causal", "--shape", "heads=2,q_len=64"}).code, 0);
  const Outcome drawn = attune({"sweep", "run", sweep, "--device", "cpu", "--max-candidates", "2"},
                               {.terminal = true});
  ASSERT_EQ(drawn.code, 0) << drawn.out;
  EXPECT_THAT(drawn.out, HasSubstr("0/1 best "));
  EXPECT_THAT(drawn.out, HasSubstr(" us, causal 1 x 2 x 64"));
}

TEST_F(Interrupt, ProgressIsABarOnATerminalAndPlainLinesElsewhere) {
  const auto tune = [](const std::string& cache) {
    return std::vector<std::string>{"tune",
                                    "causal",
                                    "--shape",
                                    "heads=2,q_len=64",
                                    "--device",
                                    "cpu",
                                    "--max-candidates",
                                    "2",
                                    "--cache",
                                    scratch_directory() + "/" + cache};
  };
  const Outcome drawn = attune(tune("bar.db"), {.terminal = true});
  ASSERT_EQ(drawn.code, 0) << drawn.out;
  for (const char* part : {"\r\033[K", "\u2502", " % ", "/2 ", "best ", "compiling", "measuring"}) {
    EXPECT_THAT(drawn.out, HasSubstr(part));
  }
  const Outcome plain = attune(tune("lines.db"));
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("causal: 0/2 compiling\n"));
  EXPECT_THAT(plain.err, HasSubstr("causal: 2/2 "));
  for (const char* drawing : {"\r", "\033", "\u2502"})
    EXPECT_THAT(plain.err, Not(HasSubstr(drawing)));
}

}  // namespace
}  // namespace attune::cli_test
