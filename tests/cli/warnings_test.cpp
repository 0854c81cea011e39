// What a spec was probably not meant to say, told by the commands that read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kNeverTrue =
    "attune: 1\nname: never\ndtype: bf16\nhead_dim: 64\nmask: causal and q_pos < kv_idx\n";
constexpr const char* kMixed =
    "attune: 1\nname: mixed\ndtype: bf16\nhead_dim: 64\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
    "mask: causal and doc[b, q_idx] == doc[b, kv_idx]\n";

TEST(Warnings, AreShownWithTheirPlaceAndFailNothing) {
  const Outcome outcome = attune({"check", "-"}, {.input = kNeverTrue});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("ok -: `never`"));
  EXPECT_THAT(outcome.err, StartsWith("<stdin>:5:1: warning: the mask is true nowhere"));
  EXPECT_THAT(outcome.err, HasSubstr("[spec-mask-never]"));
  EXPECT_THAT(attune({"-q", "check", "-"}, {.input = kNeverTrue}).err, IsEmpty());
}

TEST(Warnings, AreInTheJson) {
  const Outcome outcome = attune({"check", "--json", "causal", "-"}, {.input = kMixed});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  const Json specs = Json::parse(outcome.out)["specs"];
  EXPECT_TRUE(specs[0]["warnings"].empty());
  ASSERT_EQ(specs[1]["warnings"].size(), 1u);
  EXPECT_EQ(specs[1]["warnings"][0]["id"], "spec-mixed-alignment");
  EXPECT_EQ(specs[1]["warnings"][0]["line"], 6);
}

TEST(Warnings, AreShownByCommandsThatUseTheSpec) {
  for (const char* command : {"generate", "explain"}) {
    const Outcome outcome = attune(
        {command, "-", "--target", "sm_80", "--shape", "heads=1,q_len=128"}, {.input = kMixed});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("warning: ")) << command;
    EXPECT_THAT(outcome.err, HasSubstr("[spec-mixed-alignment]")) << command;
  }
}

}  // namespace
}  // namespace attune::cli_test
