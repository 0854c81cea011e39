// attune tune, run and bench, on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/on_the_cpu.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(OnTheCpu, ASecondTuneFindsEverythingCached) {
  const Json result = parse(tune())["results"][0];
  EXPECT_EQ(result["measured"], 0);
  EXPECT_GT(result["from_cache"], 0);
}

TEST_F(OnTheCpu, RunTakesTheTunedPlanAndVerifies) {
  const Outcome outcome = attune({"run", "causal", "--shape", "heads=2,q_len=64", "--device", "cpu",
                                  "--cache", cache(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse(outcome);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["plan_from"], "measured");
  EXPECT_EQ(json["from_cache"], true);
  EXPECT_LT(json["o_max_error"], 0.1);
}

TEST_F(OnTheCpu, RunTakesAnyOtherShapeToo) {
  const Outcome outcome =
      attune({"run", "causal", "--shape", "batch=2,heads=4,kv_heads=2,q_len=37,kv_len=91",
              "--device", "cpu", "--cache", cache(), "--rows", "0"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("rows   296 of 296"));
}

TEST_F(OnTheCpu, EverySeedIsTakenAsItIs) {
  for (const char* seed : {"0", "7"}) {
    const Outcome outcome = attune({"run", "causal", "--shape", "heads=2,q_len=64", "--device",
                                    "cpu", "--cache", cache(), "--seed", seed, "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(parse(outcome)["seed"].dump(), seed);
  }
}

TEST_F(OnTheCpu, BenchGivesTimesAndShares) {
  const Outcome outcome = attune({"bench", "causal", "--shape", "heads=2,q_len=64", "--device",
                                  "cpu", "--cache", "none", "--samples", "3", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = parse(outcome)["results"][0];
  EXPECT_GT(result["median_us"], 0);
  EXPECT_NEAR(result["live_share"].get<double>(), 65.0 / 128, 1e-9);
  EXPECT_GT(result["roofline_share"], 0);
}

TEST_F(OnTheCpu, ABackwardPassIsTunedRunAndBenched) {
  const auto command = [](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words = {
        name,     "causal",  "--shape", "heads=4,kv_heads=2,q_len=80", "--device", "cpu",
        "--json", "--cache", cache()};
    words.insert(words.end(), more.begin(), more.end());
    return attune(words);
  };
  const Outcome tuned =
      command("tune", {"--pass", "backward", "--max-candidates", "3", "--compile-threads", "1"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Json winner = parse(tuned)["results"][0];
  EXPECT_EQ(winner["pass"], "backward");
  EXPECT_EQ(winner["rejected"], 0);
  EXPECT_THAT(winner["plan"].get<std::string>(), StartsWith("cpu backward cpu "));

  const Outcome run = command("run", {"--pass", "both"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json passes = parse(run)["passes"];
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[1]["ok"], true);
  EXPECT_EQ(passes[1]["plan"], winner["plan"]);
  EXPECT_EQ(passes[1]["plan_from"], "measured");
  EXPECT_NE(passes[0]["plan_from"], "measured") << "another shape was tuned";

  const Outcome timed = command("bench", {"--pass", "both", "--samples", "3"});
  ASSERT_EQ(timed.code, 0) << timed.err;
  const Json results = parse(timed)["results"];
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1]["pass"], "backward");
  EXPECT_EQ(results[1]["plan"], winner["plan"]);
  EXPECT_EQ(results[1]["flops"], 2.5 * results[0]["flops"].get<double>());
  for (const Json& result : results) {
    EXPECT_GT(result["median_us"], 0);
    EXPECT_GT(result["roofline_share"], 0);
  }

  const Json problems = parse(attune({"cache", "ls", "--cache", cache(), "--json"}))["problems"];
  EXPECT_EQ(problems.size(), 2u) << "the fixture's and the backward pass'";
}

TEST_F(OnTheCpu, APassWithoutPlansIsAnErrorOfThatPassAlone) {
  const std::string spec =
      scratch_file("dense.yaml",
                   "attune: 1\nname: dense\ndtype: fp32\nhead_dim: 16\ndeterministic: true\n"
                   "tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"
                   "score: score + bias[q_idx, kv_idx]\n");
  const Outcome outcome =
      attune({"tune", spec, "--shape", "heads=2,q_len=64", "--device", "cpu", "--pass", "both",
              "--max-candidates", "2", "--json", "--cache", scratch_directory() + "/dense.db"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("no kernel family serves this spec's backward pass on cpu"));
  EXPECT_THAT(outcome.err, HasSubstr("`deterministic: true` rules out"));
  const Json results = parse(outcome)["results"];
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]["pass"], "forward");
  EXPECT_EQ(results[0]["ok"], true);
  EXPECT_EQ(results[1]["pass"], "backward");
  EXPECT_EQ(results[1]["ok"], false);
  EXPECT_EQ(results[1]["error"], "plan-unsupported");
}

TEST(Kinds, OfDataAreNamedWhileTheyAreTunedAndWhenTheyAreShown) {
  const std::string cache = scratch_directory() + "/kinds.db";
  const std::string spec = scratch_file("kinds.yaml",
                                        "attune: 1\nname: kinds\ndtype: fp16\nhead_dim: 16\n"
                                        "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
                                        "mask: document(doc)\n");
  const Outcome tuned = attune({"tune", spec, "--shape", "heads=1,q_len=64", "--device", "cpu",
                                "--max-candidates", "1", "--cache", cache},
                               {.terminal = true});
  if (tuned.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  ASSERT_EQ(tuned.code, 0) << tuned.out;
  EXPECT_THAT(tuned.out, HasSubstr("three kinds of data"));
  EXPECT_THAT(tuned.out, HasSubstr(" on doc=segments("));
  EXPECT_THAT(attune({"cache", "show", spec, "--cache", cache}).out,
              HasSubstr("  doc=segments(mean="));
}

}  // namespace
}  // namespace attune::cli_test
