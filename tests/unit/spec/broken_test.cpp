// Every file of tests/fixtures/broken says in its first line what it must report: "# expect: ID
// LINE COLUMN".
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

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

}  // namespace
}  // namespace attune
