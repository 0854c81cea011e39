// Every file of tests/fixtures/broken says in its first line what it must report: "# expect: ID
// LINE COLUMN".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "generator/spec/spec.hpp"

namespace attune {
namespace {

TEST(BrokenSpecs, ReportTheExactPlace) {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fixtures/broken"))
    paths.insert(entry.path());
  EXPECT_GE(paths.size(), 100u);
  for (const auto& path : paths) {
    SCOPED_TRACE(path);
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    std::istringstream first_line(text.str());
    std::string hash, expect, id;
    int line = 0, column = 0;
    first_line >> hash >> expect >> id >> line >> column;
    ASSERT_EQ(expect, "expect:");

    const auto spec = parse_spec(text.str(), path.string());
    ASSERT_FALSE(spec.ok());
    const Error& error = spec.error();
    EXPECT_EQ(error.id, id) << render(error);
    EXPECT_EQ(error.span.line, line) << render(error);
    EXPECT_EQ(error.span.column, column) << render(error);
    EXPECT_EQ(error.file, path.string());
    EXPECT_EQ(exit_code(error.kind), 2);
    EXPECT_EQ(error.message.find('\n'), std::string::npos);
    for (const char c : render(error))
      EXPECT_TRUE(c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20);
  }
}

// The same mistake has the same error whatever the order of keys.
TEST(BrokenSpecs, NothingHidesAnUnknownKey) {
  for (const std::string_view text :
       {"zzz: 1\nattune: 1\n", "attune: 1\nzzz: 1\n", "attune: 1\ndtype: bf61\nzzz: 1\n"}) {
    EXPECT_EQ(parse_spec(text, "f").error().id, "spec-unknown-key");
  }
}

TEST(BrokenSpecs, HintsKnowTheWordsOfOtherLibraries) {
  constexpr std::string_view kHead = "attune: 1\nname: x\ndtype: fp16\nhead_dim: 64\n";
  for (const auto& [line, hint] : std::initializer_list<std::pair<std::string, std::string>>{
           {"causal: true", "`mask: causal`"},
           {"softcap: 50", "cap * tanh(score / cap)"},
           {"heads: 8", "`--shape heads=8,q_len=512`"},
           {"scale: 0.1", "did you mean `softmax_scale`?"},
           {"score_mod: score", "did you mean `score`?"},
           {"mask: !causal", "write `not x`"},
           {"tensors: {doc: {dtype: int32, shape: [batch]}}", "did you mean `dims`?"}}) {
    const auto spec = parse_spec(std::string(kHead) + line, "f");
    ASSERT_FALSE(spec.ok()) << line;
    EXPECT_THAT(spec.error().hint, testing::HasSubstr(hint)) << line;
  }
  const auto spec = parse_spec(std::string(kHead) + "tensors: {doc: \"int32[batch]\"}", "f");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().hint, "");  // quotes are not what is wrong with it
}

}  // namespace
}  // namespace attune
