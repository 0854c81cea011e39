// What each subcommand gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kBadSpec = "attune: 1\nname: x\ndtype: bf16\nhead_dim: 64\nmaks: causal\n";

// Fails the test when the text is not one JSON document.
Json parse(const Outcome& outcome) {
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out << outcome.err;
  return json;
}

TEST(Check, AcceptsALibraryNameAPathAndStdin) {
  const Outcome outcome = attune({"check", "causal", "specs/full.yaml", "-"},
                                 {.input = "attune: 1\nname: mine\ndtype: fp16\nhead_dim: 64\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("ok causal: `causal`"));
  EXPECT_THAT(outcome.out, HasSubstr("ok -: `mine`, fp16, head dim 64"));
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(Check, ShowsThePlaceOfAnError) {
  const Outcome outcome = attune({"check", "-"}, {.input = kBadSpec});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, StartsWith("<stdin>:5:1: error: "));
  EXPECT_THAT(outcome.err, HasSubstr("maks: causal\n      | ^"));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean `mask`?"));
}

TEST(Check, GoesOnAfterABadSpec) {
  const Outcome outcome = attune({"check", scratch_file("bad.yaml", kBadSpec), "causal"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, HasSubstr("ok causal"));
}

TEST(Check, JsonTellsErrorsToo) {
  const Outcome outcome = attune({"check", "--json", "causal", "-"}, {.input = kBadSpec});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, IsEmpty());
  const Json specs = parse(outcome)["specs"];
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[0]["ok"], true);
  EXPECT_EQ(specs[0]["hash"].get<std::string>().size(), 32u);
  EXPECT_EQ(specs[1]["ok"], false);
  EXPECT_EQ(specs[1]["error"]["line"], 5);
  EXPECT_EQ(specs[1]["error"]["column"], 1);
}

TEST(Check, RefusesWhatIsNoSpec) {
  for (const std::string& text : {std::string(), std::string("\0\xff\xfe", 3),
                                  std::string(2 << 20, 'a'), std::string(100000, '[')}) {
    const Outcome outcome = attune({"check", "-"}, {.input = text});
    EXPECT_EQ(outcome.code, 2) << text.substr(0, 20);
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(Check, ListsTheLibrary) {
  const Outcome outcome = attune({"check", "--list"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("causal\n"));
  const Json specs = parse(attune({"check", "--list", "--json"}))["specs"];
  EXPECT_GT(specs.size(), 20u);
  for (const Json& spec : specs)
    EXPECT_TRUE(std::filesystem::exists(spec["path"].get<std::string>()));
}

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
          "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n"
          "score: score + slope[h] * (kv_idx - q_idx)\n"};
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

// A problem that the CPU solves in no time, tuned into a file of its own.
class OnTheCpu : public testing::Test {
 protected:
  static Outcome tune() {
    return attune({"tune", "causal", "--shape", "heads=2,q_len=64", "--device", "cpu",
                   "--max-candidates", "2", "--json", "--cache", cache()});
  }
  static std::string cache() { return scratch_directory() + "/tuned.db"; }
  void SetUp() override {
    const Outcome outcome = tune();
    if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
};

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

TEST_F(OnTheCpu, TheCacheListsAndShowsWhatWasMeasured) {
  const Json listed = parse(attune({"cache", "ls", "--cache", cache(), "--json"}));
  ASSERT_EQ(listed["problems"].size(), 1u);
  EXPECT_EQ(listed["problems"][0]["spec"], "causal");
  const Json shown = parse(attune({"cache", "show", "causal", "--cache", cache(), "--json"}));
  EXPECT_EQ(shown["problems"][0]["measured"].size(), listed["problems"][0]["measured"]);
  EXPECT_THAT(attune({"cache", "show", "full", "--cache", cache()}).out, IsEmpty());
}

TEST_F(OnTheCpu, CacheFilesAreExportedMergedVerifiedAndTrimmed) {
  const std::string exported = scratch_directory() + "/exported.db",
                    merged = scratch_directory() + "/merged.db";
  EXPECT_EQ(attune({"cache", "export", exported, "--spec", "causal", "--cache", cache()}).code, 0);
  EXPECT_EQ(attune({"cache", "export", exported, "--cache", cache()}).code, 2) << "it exists";
  const Json first = parse(attune({"cache", "merge", exported, "--cache", merged, "--json"}));
  EXPECT_GT(first["merged"][0]["rows_gained"], 0);
  const Json again = parse(attune({"cache", "import", exported, "--cache", merged, "--json"}));
  EXPECT_EQ(again["merged"][0]["rows_gained"], 0);
  EXPECT_EQ(attune({"cache", "ls", "--cache", merged, "--json"}).code, 0);
  EXPECT_EQ(parse(attune({"cache", "verify", "--cache", merged, "--json"}))["ok"], true);
  EXPECT_EQ(attune({"cache", "gc", "--cache", merged, "--limit-mb", "1"}).code, 0);
}

TEST_F(OnTheCpu, ImportLeavesKernelsOutWhenAskedAndWhenOthersMayWriteThem) {
  const std::string exported = scratch_directory() + "/given.db",
                    taken = scratch_directory() + "/taken.db";
  ASSERT_EQ(attune({"cache", "export", exported, "--cache", cache()}).code, 0);
  const auto kernels = [&] {
    return parse(attune({"cache", "ls", "--cache", taken, "--json"}))["kernels"].get<int>();
  };
  ASSERT_EQ(attune({"cache", "import", "--no-code", exported, "--cache", taken}).code, 0);
  EXPECT_EQ(kernels(), 0);
  std::filesystem::permissions(exported, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  const Outcome refused = attune({"cache", "import", exported, "--cache", taken});
  EXPECT_EQ(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("may be written by anybody"));
  EXPECT_EQ(kernels(), 0);
  EXPECT_EQ(attune({"cache", "export", taken + ".out", "--cache", exported}).code, 2);
  std::filesystem::permissions(exported, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::remove);
  EXPECT_EQ(attune({"cache", "import", exported, "--cache", taken}).code, 0);
  EXPECT_GT(kernels(), 0);
}

TEST(Cache, WhatIsNoneIsNotImported) {
  const std::string into = scratch_directory() + "/nothing.db";
  for (const std::string& text : {std::string("spec,us\ncausal,12\n"), std::string(5000, 'x')}) {
    const Outcome outcome =
        attune({"cache", "import", scratch_file("notes.csv", text), "--cache", into});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("notes.csv` is not an Attune cache"));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(into));
}

TEST(Cache, WithoutAHomeThereIsNone) {
  const RunOptions homeless{.environment = {{"HOME", ""}}};
  const Outcome outcome = attune({"cache", "ls"}, homeless);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("needs a cache file"));
  EXPECT_FALSE(std::filesystem::exists("attune.db"));
}

TEST_F(OnTheCpu, ADamagedFileIsFoundAndRebuilt) {
  std::string bytes = read_file(cache());
  for (std::size_t at = bytes.size() / 2; at < bytes.size() / 2 + 4096; ++at) bytes[at] = '!';
  const std::string damaged = scratch_file("damaged.db", bytes);
  EXPECT_EQ(attune({"cache", "verify", "--cache", damaged}).code, 1);
  const Outcome rebuilding = attune({"cache", "verify", "--rebuild", "--cache", damaged});
  EXPECT_EQ(rebuilding.code, 0);
  EXPECT_THAT(rebuilding.out, HasSubstr("\nlost: "));
  const Outcome rebuilt = attune({"cache", "verify", "--cache", damaged, "--json"});
  EXPECT_EQ(rebuilt.code, 0) << rebuilt.out;
  EXPECT_EQ(parse(rebuilt)["ok"], true);
}

TEST_F(OnTheCpu, ASweepIsPlannedRunAndMergedAndRunsOnceOnly) {
  const std::string directory = scratch_directory() + "/sweep",
                    merged = scratch_directory() + "/swept.db";
  const std::vector<std::string> run = {
      "sweep", "run", directory, "--device", "cpu", "--max-candidates", "1", "--json"};
  ASSERT_EQ(
      attune({"sweep", "plan", directory, "causal", "full", "--shape", "heads=2,q_len=64"}).code,
      0);
  EXPECT_EQ(parse(attune({"sweep", "status", directory, "--json"}))["tuned"], 0);
  EXPECT_EQ(parse(attune(run))["tuned"], 2);
  const Json again = parse(attune(run));
  EXPECT_EQ(again["tuned"], 0);
  EXPECT_EQ(again["before"], 2);
  EXPECT_EQ(parse(attune({"sweep", "status", directory, "--json"}))["tuned"], 2);
  ASSERT_EQ(attune({"sweep", "merge", directory, "--cache", merged}).code, 0);
  EXPECT_EQ(parse(attune({"cache", "ls", "--cache", merged, "--json"}))["problems"].size(), 2u);
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

TEST_F(OnTheCpu, ASweepHasAProblemForEachPass) {
  const std::string directory = scratch_directory() + "/passes";
  ASSERT_EQ(attune({"sweep", "plan", directory, "causal", "--pass", "both", "--shape",
                    "heads=2,q_len=64"})
                .code,
            0);
  const Json problems = parse(attune({"sweep", "status", directory, "--json"}))["problems"];
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0]["pass"], "forward");
  EXPECT_EQ(problems[1]["pass"], "backward");
}

// The job array's own script, as Slurm runs it, with an `attune` that takes this machine for GPUs.
TEST_F(OnTheCpu, TheTasksOfAJobArrayShareTheSweepOut) {
  const std::string sweep = scratch_directory() + "/array", bin = scratch_directory() + "/bin";
  ASSERT_EQ(
      attune({"sweep", "plan", sweep, "causal", "full", "prefix_lm", "--shape", "heads=2,q_len=64"})
          .code,
      0);
  std::filesystem::create_directories(bin);
  const std::string stand_in = scratch_file(
      "bin/attune",
      "#!/bin/sh\n[ \"$*\" = \"sweep run $SWEEP --gpus all\" ] || exit 9\nexec '" +
          std::string(ATTUNE_BINARY) +
          "' sweep run \"$SWEEP\" --device cpu --max-candidates 1 2>> \"$SWEEP/log\"\n");
  std::filesystem::permissions(stand_in, std::filesystem::perms::owner_all);
  for (const auto& [task, tuned] : {std::pair("1", 2), std::pair("2", 3)}) {
    const std::string command = "PATH='" + bin + "':\"$PATH\" SWEEP='" + sweep +
                                "' SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=2 "
                                "SLURM_ARRAY_TASK_ID=" +
                                task + " bash examples/slurm/sweep.sbatch > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(sweep + "/log");
    EXPECT_EQ(parse(attune({"sweep", "status", sweep, "--json"}))["tuned"], tuned);
    EXPECT_THAT(read_file(sweep + "/log"), HasSubstr("shard " + std::string(task) + "/2"));
  }
}

TEST_F(OnTheCpu, TheBestPlansKernelIsPinnedAndAllOfASpecsAreUnpinned) {
  const std::vector<std::string> pin = {"cache", "pin", "causal", "--cache", cache(), "--json"};
  EXPECT_EQ(parse(attune(pin))["pinned"], 1);
  std::vector<std::string> unpin = pin;
  unpin.push_back("--off");
  EXPECT_GT(parse(attune(unpin))["unpinned"], 1) << "every candidate's";
  EXPECT_EQ(parse(attune({"cache", "pin", "full", "--cache", cache(), "--json"}))["pinned"], 0);
}

TEST(Cache, OfNoFileIsAnError) {
  EXPECT_NE(attune({"cache", "ls", "--cache", scratch_directory() + "/absent.db"}).code, 0);
}

TEST(Status, ShowsTheCacheFilesThatARuntimeWouldAsk) {
  const std::string file = scratch_directory() + "/status.db";
  const Outcome outcome = attune({"status", "--device", "cpu", "--cache", file, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json status = parse(outcome);
  EXPECT_EQ(status["device"]["target"], "cpu");
  ASSERT_FALSE(status["cache"].empty());
  EXPECT_EQ(status["cache"][0]["path"], file);
  EXPECT_EQ(status["cache"][0]["state"], "ok");
  const Outcome text = attune({"status", "--device", "cpu", "--cache", file});
  EXPECT_THAT(text.out, HasSubstr(file + " ok"));
}

TEST(Devices, SayWhatIsHereOrHowToGetIt) {
  const Outcome outcome = attune({"devices", "--json"});
  EXPECT_THAT((std::vector{0, 3}), testing::Contains(outcome.code));
  for (const Json& device : parse(outcome)["devices"]) {
    if (device["present"]) {
      EXPECT_FALSE(device["identity"].get<std::string>().empty()) << device;
    } else {
      EXPECT_FALSE(device["missing"].get<std::string>().empty()) << device;
      EXPECT_FALSE(device["hint"].get<std::string>().empty()) << device;
    }
  }
}

}  // namespace
}  // namespace attune::cli_test
