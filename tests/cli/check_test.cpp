// attune check.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kBadSpec = "attune: 1\nname: x\ndtype: bf16\nhead_dim: 64\nmaks: causal\n";

TEST(Check, AcceptsALibraryNameAPathAndStdin) {
  const Outcome outcome = attune({"check", "causal", "specs/full.yaml", "-"},
                                 {.input = "attune: 1\nname: mine\ndtype: fp16\nhead_dim: 64\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("ok causal: `causal`"));
  EXPECT_THAT(outcome.out, HasSubstr("ok -: `mine`, fp16, head dim 64"));
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(Check, ShowsWhatTheExpressionsOfOneSpecComeTo) {
  const Outcome outcome =
      attune({"check", "-"}, {.input = "attune: 1\nname: x\ndtype: fp16\nhead_dim: 64\n"
                                       "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
                                       "mask: true and document(doc)\nscore: 2 * 3 * score\n"});
  EXPECT_THAT(outcome.out,
              HasSubstr("\n  mask   doc[b, q_idx + (kv_len - q_len)] == doc[b, kv_idx]\n"
                        "  score  6.0 * score\n"));
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

}  // namespace
}  // namespace attune::cli_test
