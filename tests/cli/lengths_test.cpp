// Lengths of sequences that commands make up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

std::string spec_of(const std::string& layout, const std::string& more = "") {
  const std::string path = scratch_directory() + "/" + layout + ".yaml";
  std::ofstream(path) << "attune: 1\nname: decode\ndtype: fp32\nhead_dim: 16\nlayout: " << layout
                      << "\nmask: causal\n"
                      << more;
  return path;
}

std::string shape_of(const std::string& layout) {
  return layout == "thd" ? "batch=4,heads=4,kv_heads=2,q_len=4,kv_len=400"
                         : "batch=4,heads=4,kv_heads=2,q_len=4,kv_len=200";
}

Outcome on_the_cpu(const std::string& command, const std::string& layout,
                   const std::string& lengths, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {command,          spec_of(layout), "--shape",
                                    shape_of(layout), "--device",      "cpu",
                                    "--json",         "--lengths",     lengths};
  words.insert(words.end(), more.begin(), more.end());
  return attune(words);
}

TEST(Lengths, RunVerifiesEveryKind) {
  const std::string file = scratch_directory() + "/lengths.txt";
  std::ofstream(file) << "100\n7\n0\n93\n";
  for (const char* layout : {"thd", "paged"}) {
    for (const std::string lengths :
         {"equal", "uniform(0.3, 1)", "skewed(0.7)", "100, 7, 0, 93", "@lengths"}) {
      const Outcome outcome =
          on_the_cpu("run", layout, lengths == "@lengths" ? "@" + file : lengths,
                     {"--rows", "0", "--cache", "none"});
      if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
      ASSERT_EQ(outcome.code, 0) << lengths << outcome.err;
      EXPECT_TRUE(Json::parse(outcome.out)["ok"].get<bool>());
      if (lengths == "@lengths") {
        EXPECT_EQ(Json::parse(outcome.out)["lengths"], "100, 7, 0, 93");
      }
    }
  }
}

TEST(Lengths, WhatIsWrongIsBadInput) {
  struct Case {
    const char *layout, *lengths, *says;
  };
  for (const Case& c :
       {Case{"thd", "unifrom(0.3, 1)", "did you mean `uniform`?"},
        Case{"thd", "uniform(0.3, 2)", "`high` of `uniform` is 2, not in 0 to 1"},
        Case{"thd", "100, 7, 93", "3 lengths are given, and the shape has batch=4"},
        Case{"thd", "401, 0, 0, 0", "the lengths sum to 401, and the shape has kv_len=400"},
        Case{"paged", "201, 0, 0, 0", "a length is 201, and the shape has kv_len=200"},
        Case{"paged", "skewed(0.1)", "less than the others"},
        Case{"bshd", "equal", "lengths are given, and decode has layout `bshd`"},
        Case{"thd", "@/nowhere", "cannot read `/nowhere`"}}) {
    const Outcome outcome = on_the_cpu("run", c.layout, c.lengths, {"--cache", "none"});
    if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
    EXPECT_EQ(outcome.code, 2) << c.lengths;
    EXPECT_THAT(outcome.err, HasSubstr(c.says));
  }
}

TEST(Lengths, EachKindIsTunedAndChosenByItsName) {
  const std::string cache = scratch_directory() + "/lengths.db";
  for (const char* layout : {"thd", "paged"}) {
    for (const char* lengths : {"equal", "skewed(0.7)"}) {
      const Outcome tuned =
          on_the_cpu("tune", layout, lengths, {"--cache", cache, "--max-candidates", "2"});
      if (tuned.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
      ASSERT_EQ(tuned.code, 0) << tuned.err;
      const Json result = Json::parse(tuned.out)["results"][0];
      EXPECT_GT(result["measured"], 0) << "times of another kind are not its own";
      const Outcome run = on_the_cpu("run", layout, lengths, {"--cache", cache});
      ASSERT_EQ(run.code, 0) << run.err;
      EXPECT_EQ(Json::parse(run.out)["plan_from"], "measured");
      EXPECT_EQ(Json::parse(run.out)["plan"], result["plan"]);
      EXPECT_EQ(on_the_cpu("bench", layout, lengths, {"--cache", cache, "--samples", "2"}).code, 0);
    }
  }
  const Outcome listed = attune({"cache", "ls", "--cache", cache, "--json"});
  const Json problems = Json::parse(listed.out)["problems"];
  ASSERT_EQ(problems.size(), 2u);
  for (const Json& problem : problems) {
    ASSERT_EQ(problem["kinds"].size(), 2u);
    EXPECT_EQ(problem["kinds"][0]["data"], "lengths=equal");
    EXPECT_EQ(problem["kinds"][0]["longest_over_mean"], 1);
    EXPECT_EQ(problem["kinds"][1]["data"], "lengths=skewed(longest=0.7)");
    EXPECT_GT(problem["kinds"][1]["longest_over_mean"], 2);
  }
}

TEST(Lengths, PagesOfAnotherSizeAreAProblemOfTheirOwn) {
  const std::string cache = scratch_directory() + "/pages.db";
  const auto tune = [&](const char* size) {
    return on_the_cpu("tune", "paged", "equal",
                      {"--cache", cache, "--max-candidates", "1", "--page-size", size});
  };
  const Outcome first = tune("16");
  if (first.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(Json::parse(tune("16").out)["results"][0]["measured"], 0);
  EXPECT_EQ(Json::parse(tune("32").out)["results"][0]["measured"], 1);
}

TEST(Lengths, ASpecMayNameThem) {
  const std::string spec = spec_of("thd",
                                   "tune: {shapes: [{batch: 4, heads: 2, q_len: 4, kv_len: 400}], "
                                   "lengths: \"uniform(0.3, 1)\"}\n");
  const Outcome outcome =
      attune({"run", spec, "--device", "cpu", "--cache", "none", "--rows", "0", "--json"});
  if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["lengths"], "uniform(low=0.3, high=1)");
}

TEST(Lengths, ASweepHandsThemOn) {
  const std::string directory = scratch_directory() + "/lengths_sweep";
  const Outcome planned =
      attune({"sweep", "plan", directory, spec_of("paged"), "--shape", shape_of("paged"),
              "--lengths", "skewed(0.7)", "--page-size", "32"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Outcome ran =
      attune({"sweep", "run", directory, "--device", "cpu", "--max-candidates", "1", "--json"});
  if (ran.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::string cache = scratch_directory() + "/lengths_swept.db";
  ASSERT_EQ(attune({"sweep", "merge", directory, "--cache", cache}).code, 0);
  const Json problems =
      Json::parse(attune({"cache", "ls", "--cache", cache, "--json"}).out)["problems"];
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0]["kinds"][0]["data"], "lengths=skewed(longest=0.7); page=32");
}

}  // namespace
}  // namespace attune::cli_test
