// attune explain, and the passes that commands take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Explain, DrawsTheMaskAndSaysWhatBoundsIt) {
  const Outcome outcome =
      attune({"explain", "causal", "--target", "sm_80", "--shape", "heads=8,q_len=2048"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"full", "partial", "skip", "\nplan  sm80 forward", "\nshared memory  ", "\nroofline  "}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

TEST(Explain, APeakBelowOneTeraflopIsNotRoundedAway) {
  const Outcome outcome = attune({"explain", "causal", "--target", "cpu", "--device", "cpu",
                                  "--cache", "none", "--shape", "heads=2,q_len=128"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("peak       0 TFLOP/s")));
  EXPECT_THAT(outcome.out, HasSubstr("\n  peak       "));
}

TEST(Explain, CountsTilesAndWritesAnSvg) {
  const std::string path = scratch_directory() + "/mask.svg";
  const Outcome outcome =
      attune({"explain", "causal", "--target", "sm_80", "--shape", "heads=8,q_len=2048", "--plan",
              "sm80 forward sm_80 q128 k64 s2 w4 c32 u1 frozen", "--json", "--svg", path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse(outcome);
  // 16 x 32 tiles of 128 x 64: two partial ones a row on the diagonal, the full ones below it.
  EXPECT_EQ(json["tiles"]["partial"], 32);
  EXPECT_EQ(json["tiles"]["full"], 240);
  EXPECT_EQ(json["tiles"]["skip"], 240);
  int shared = 0;
  for (const Json& region : json["shared_memory"]) shared += region["bytes"].get<int>();
  EXPECT_EQ(shared, json["shared_memory_bytes"]);
  EXPECT_THAT(read_file(path), StartsWith("<svg"));
}

TEST(Explain, CountsTheColumnsThatPadRowsInSharedMemory) {
  // Two slabs of 64 columns hold rows of 80.
  const Outcome outcome = attune({"explain", "models/vit_h", "--target", "sm_90a", "--plan",
                                  "sm90a forward sm_90a w2 k128 s2 b1 c1 persistent g1 frozen",
                                  "--shape", "heads=16,q_len=257", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse(outcome);
  std::map<std::string, int> bytes;
  for (const Json& region : json["shared_memory"]) bytes[region["name"]] = region["bytes"];
  EXPECT_EQ(bytes["K"], 2 * 128 * 128 * 2);
  EXPECT_EQ(bytes["V"], bytes["K"]);
  EXPECT_EQ(bytes["Q"], 128 * 128 * 2);
  EXPECT_LT(bytes["rest"], 1024) << "barriers and the schedule";
}

TEST(Explain, ABackwardPlanHasMemoryLaunchesAndARoofline) {
  for (const auto& [target, plan] : {std::pair("sm_90a", "sm90a backward sm_90a w2 q64 s2"),
                                     std::pair("sm_80", "sm80 backward sm_80 w4 t32 s2")}) {
    const std::vector<std::string> command = {
        "explain",  "causal", "--target", target,    "--pass",
        "backward", "--plan", plan,       "--shape", "heads=8,q_len=2048"};
    const Outcome outcome = attune(command);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const std::string& part :
         {std::string("\nplan  ") + plan, std::string("launches   _rows, main, _queries"),
          std::string("\nshared memory  "), std::string("\nroofline  ")}) {
      EXPECT_THAT(outcome.out, HasSubstr(part));
    }
    std::vector<std::string> as_json = command;
    as_json.push_back("--json");
    const Json json = parse(attune(as_json));
    EXPECT_EQ(json["pass"], "backward");
    EXPECT_EQ(json["launches"].size(), 3u);
    EXPECT_GT(json["workspace_bytes"], 0);
    EXPECT_GT(json["roofline_us"], 0);
    EXPECT_GT(json["predicted_us"], json["roofline_us"]);
    std::map<std::string, int> bytes;
    int shared = 0;
    for (const Json& region : json["shared_memory"]) {
      bytes[region["name"]] = region["bytes"];
      shared += region["bytes"].get<int>();
    }
    EXPECT_EQ(shared, json["shared_memory_bytes"]);
    EXPECT_EQ(bytes["K"], json["tiles"]["kv"].get<int>() * 128 * 2);
    EXPECT_EQ(bytes["dO"], 2 * json["tiles"]["q"].get<int>() * 128 * 2);
    EXPECT_LT(bytes["rest"], 8192) << "what is not named";
  }
}

TEST(Explain, OfBothPassesIsTheForwardAndThenTheBackward) {
  const std::vector<std::string> command = {"explain", "causal", "--target", "sm_90a",
                                            "--pass",  "both",   "--shape",  "heads=8,q_len=2048"};
  const Outcome outcome = attune(command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto forward = outcome.out.find("\nplan  sm90a forward");
  EXPECT_NE(forward, std::string::npos);
  EXPECT_LT(forward, outcome.out.find("\nplan  sm90a backward"));
  std::vector<std::string> as_json = command;
  as_json.push_back("--json");
  const Json passes = parse(attune(as_json))["passes"];
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[1]["flops"], 2.5 * passes[0]["flops"].get<double>());
}

TEST(Explain, APassThatNoPlanDoesDeterministicallyIsAnError) {
  const RunOptions learned{
      .input =
          "attune: 1\nname: x\ndtype: bf16\nhead_dim: 64\ndeterministic: true\n"
          "tensors: {bias: {dtype: float32, dims: [heads, q_len, kv_len], grad: true}}\n"
          "score: score + bias[h, q_idx // 2, kv_idx]\n"};
  const std::vector<std::string> command = {"explain", "-",       "--target",
                                            "sm_90a",  "--shape", "heads=8,q_len=512"};
  EXPECT_EQ(attune(command, learned).code, 0) << "the forward pass ignores it";
  std::vector<std::string> backward = command;
  backward.insert(backward.end(), {"--pass", "backward"});
  const Outcome outcome = attune(backward, learned);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("backward pass on sm_90a"));
  EXPECT_THAT(outcome.err, HasSubstr("`deterministic: true` rules out"));
}

TEST(Passes, AnUnknownOneIsBadInput) {
  for (const char* command : {"explain", "tune", "bench", "generate"}) {
    const Outcome outcome = attune({command, "causal", "--pass", "sideways"});
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("unknown pass `sideways`")) << command;
  }
  const Outcome both = attune({"generate", "causal", "--target", "sm_80", "--pass", "both"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("[pass-unknown]"));
}

}  // namespace
}  // namespace attune::cli_test
