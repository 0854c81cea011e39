// What each subcommand gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
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
  const Json json = parse(attune({"generate", "causal", "--target", "sm_80", "--json"}));
  const Outcome again = attune(
      {"generate", "causal", "--target", "sm_80", "--plan", json["plan"].get<std::string>()});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, json["source"].get<std::string>());
}

TEST(Generate, WritesAFileWholeOrNotAtAll) {
  const std::string path = scratch_directory() + "/kernel.cu";
  const Outcome outcome = attune({"generate", "causal", "--target", "sm_80", "-o", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_EQ(read_file(path), attune({"generate", "causal", "--target", "sm_80"}).out);
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
