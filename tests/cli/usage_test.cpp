// How the command talks: help, exit codes, streams, colours, pipes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kCommands[] = {"check", "generate", "compile", "explain",
                                     "run",   "bench",    "tune",    "sweep",
                                     "cache", "report",   "devices", "status"};

TEST(Help, EverySubcommandShowsItsOptionsAndAnExample) {
  for (const char* name : kCommands) {
    const std::string command = name;
    const Outcome outcome = attune({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr("Example:\n  attune " + command)) << command;
    EXPECT_THAT(outcome.err, IsEmpty()) << command;
  }
}

TEST(Help, ShapesOfItsExamplesAreWhole) {
  for (const char* command : {"explain", "run", "bench"}) {
    const std::string help = attune({command, "--help"}).out;
    const std::size_t at =
        help.find("--shape ", help.find("Example:")) + std::string("--shape ").size();
    const std::string shape = help.substr(at, help.find_first_of(" \n", at) - at);
    EXPECT_EQ(attune({"explain", "causal", "--target", "sm_80", "--shape", shape}).err, "")
        << shape;
  }
}

TEST(Help, SoDoTheSubcommandsOfSweepAndCache) {
  const std::pair<const char*, std::vector<const char*>> groups[] = {
      {"sweep", {"plan", "run", "status", "merge"}},
      {"cache", {"ls", "show", "export", "import", "merge", "verify", "gc"}}};
  for (const auto& [group, subcommands] : groups) {
    for (const std::string subcommand : subcommands) {
      const Outcome outcome = attune({group, subcommand, "--help"});
      EXPECT_EQ(outcome.code, 0) << subcommand;
      EXPECT_THAT(outcome.out,
                  HasSubstr("Example:\n  attune " + std::string(group) + " " + subcommand));
    }
    EXPECT_EQ(attune({group}).code, 2);
  }
}

TEST(Help, TheCommandListsItsSubcommands) {
  const Outcome outcome = attune({"--help"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* name : kCommands) EXPECT_THAT(outcome.out, HasSubstr(name));
}

TEST(Version, IsOnStdout) {
  const Outcome outcome = attune({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("attune 0."));
  EXPECT_EQ(attune({"version"}).out, outcome.out);
}

TEST(Help, IsACommandToo) {
  EXPECT_EQ(attune({"help"}).out, attune({"--help"}).out);
  EXPECT_EQ(attune({"help", "cache", "ls"}).out, attune({"cache", "ls", "--help"}).out);
}

struct Misuse {
  const char* what;
  std::vector<std::string> arguments;
  const char* id;  // between brackets in the message
};

class BadInput : public testing::TestWithParam<Misuse> {};

TEST_P(BadInput, ExitsWith2AndSaysWhyOnStderrAlone) {
  const Outcome outcome = attune(GetParam().arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr(std::string("[") + GetParam().id + "]"));
  EXPECT_THAT(outcome.err, HasSubstr("error: "));
}

INSTANTIATE_TEST_SUITE_P(
    , BadInput,
    testing::Values(
        Misuse{"Nothing", {}, "usage"}, Misuse{"UnknownCommand", {"chekc"}, "usage"},
        Misuse{"UnknownOption", {"check", "causal", "--frob"}, "usage"},
        Misuse{"NoSpec", {"check"}, "usage"}, Misuse{"NoSpecToGenerate", {"generate"}, "usage"},
        Misuse{"TwoSpecsToGenerate", {"generate", "causal", "full"}, "usage"},
        Misuse{"SpecNotFound", {"check", "no_such_spec"}, "spec-not-found"},
        Misuse{"SpecIsADirectory", {"check", "specs"}, "spec-unreadable"},
        Misuse{"UnknownTarget", {"generate", "causal", "--target", "sm_1"}, "target-unknown"},
        Misuse{"TwoTargets", {"generate", "causal", "--target", "sm_80,sm_90a"}, "usage"},
        Misuse{"UnknownPass",
               {"generate", "causal", "--target", "sm_80", "--pass", "sideways"},
               "pass-unknown"},
        Misuse{"BadShape",
               {"generate", "causal", "--target", "sm_80", "--shape", "batch=0"},
               "spec-out-of-range"},
        Misuse{"BadPlan",
               {"generate", "causal", "--target", "sm_80", "--plan", "frob"},
               "plan-bad-text"},
        Misuse{"EmptyShape", {"explain", "causal", "--target", "sm_80", "--shape", ""}, "usage"},
        Misuse{"EmptyCache", {"cache", "ls", "--cache", ""}, "usage"},
        Misuse{
            "SeedBelowZero", {"explain", "causal", "--target", "sm_80", "--seed", "-1"}, "usage"},
        Misuse{"SeedThatDoesNotFit",
               {"explain", "causal", "--target", "sm_80", "--seed", "18446744073709551616"},
               "usage"},
        Misuse{"RealNumber", {"explain", "causal", "--target", "sm_80", "--head", "1.0"}, "usage"},
        Misuse{"UnknownDevice", {"tune", "causal", "--device", "tpu:0"}, "device-unknown"},
        Misuse{
            "BadShard", {"sweep", "run", "no_such_directory", "--shard", "3"}, "sweep-no-manifest"},
        Misuse{"NoCacheToList", {"cache", "ls", "--cache", "none"}, "cache-none"},
        Misuse{"UnknownCompiler",
               {"compile", "causal", "--target", "sm_80", "--compiler", "gcc"},
               "compiler-unknown"}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(BadInputs, ANumberOutOfRangeNamesTheRangeInShort) {
  EXPECT_THAT(attune({"tune", "causal", "--max-candidates", "0"}).err,
              HasSubstr("Value 0 not in range 1 to 1000000"));
}

TEST(Numbers, AreDecimalWithZerosInFrontToo) {
  const auto explain = [](const char* head) {
    return attune(
        {"explain", "causal", "--target", "sm_80", "--shape", "heads=9,q_len=128", "--head", head});
  };
  EXPECT_THAT(explain("010").err, HasSubstr("head 10 "));
  EXPECT_EQ(explain("08").code, 0);
}

TEST(Streams, ResultsOnStdoutTalkOnStderr) {
  const Outcome outcome = attune({"generate", "causal", "--target", "sm_80"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("//"));
  EXPECT_THAT(outcome.err, HasSubstr("attune: info: "));
  const Outcome quiet = attune({"-q", "generate", "causal", "--target", "sm_80"});
  EXPECT_EQ(quiet.out, outcome.out);
  EXPECT_THAT(quiet.err, IsEmpty());
}

TEST(Streams, QuietMayFollowTheSubcommand) {
  EXPECT_THAT(attune({"generate", "causal", "--target", "sm_80", "-q"}).err, IsEmpty());
}

TEST(Colours, OnATerminalOnlyAndNeverAgainstNoColor) {
  const std::string escape = "\033[";
  EXPECT_THAT(attune({"check", "causal"}).out, Not(HasSubstr(escape)));
  EXPECT_THAT(attune({"check", "causal"}, {.terminal = true}).out, HasSubstr(escape));
  EXPECT_THAT(
      attune({"check", "causal"}, {.environment = {{"NO_COLOR", "1"}}, .terminal = true}).out,
      Not(HasSubstr(escape)));
  EXPECT_THAT(
      attune({"check", "causal"}, {.environment = {{"TERM", "dumb"}}, .terminal = true}).out,
      Not(HasSubstr(escape)));
}

TEST(Pipes, AReaderThatLeftEarlyIsNoFailure) {
  const Outcome outcome = attune({"generate", "causal", "--target", "sm_80", "-q"},
                                 {.close_stdout = true, .ignore_sigpipe = true});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(Pipes, AFullDiskIs) {
  const Outcome outcome = attune({"check", "--list"}, {.stdout_file = "/dev/full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("[write-results]"));
}

TEST(Pipes, WhatStderrDoesNotTakeIsLost) {
  const std::map<std::string, std::string> absent = {{"ATTUNE_SYSTEM_CACHE", "/no/such/file"}};
  EXPECT_THAT(attune({"status"}, {.environment = absent}).err, HasSubstr("[cache-absent]"));
  const Outcome outcome = attune({"status"}, {.environment = absent, .stderr_file = "/dev/full"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("/no/such/file"));
}

TEST(Pipes, TuningNeedsNoStreams) {
  const std::string cache = scratch_directory() + "/streams.db";
  const std::vector<std::string> tune = {
      "tune", "causal",           "--shape", "heads=2,q_len=64", "--device",
      "cpu",  "--max-candidates", "1",       "--cache",          cache};
  const Outcome on_full_disk = attune(tune, {.stderr_file = "/dev/full"});
  if (on_full_disk.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  EXPECT_EQ(on_full_disk.code, 0);
  // Nobody can have the results: that is the failure, and the only one.
  EXPECT_EQ(attune(tune, {.no_streams = true}).code, 1);
  EXPECT_EQ(attune({"cache", "verify", "--cache", cache}).code, 0);
}

}  // namespace
}  // namespace attune::cli_test
