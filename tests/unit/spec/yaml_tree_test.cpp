#include "generator/spec/yaml_tree.hpp"

#include <gtest/gtest.h>

#include <string>

namespace attune {
namespace {

// Finds the character behind the one `@` of the decoded text in the file, through the positions.
TEST(ScalarPositions, FindTheCharacterInEveryStyle) {
  const struct {
    const char* name;
    std::string text;
    int line, column;
  } cases[] = {
      {"plain", "m: a + @b", 1, 8},
      {"plain, continued", "m: a\n   or\n  @b\n", 3, 3},
      {"plain, empty lines", "m: a\n\n\n  or  @b\n", 4, 7},
      {"single quotes", "m:  'a @b'", 1, 8},
      {"single quotes with an escape", "m: 'it''s @b'", 1, 11},
      {"double quotes", "m: \"a @b\"", 1, 7},
      {"double quotes with escapes", "m: \"\\x41\\t\\u00e9\\n @b\"", 1, 20},
      {"escaped line end", "m: \"a \\\n    @b\"", 2, 5},
      {"double quotes, folded", "m: \"a\n\n   @b\"", 3, 4},
      {"literal", "m: |\n  a or\n  c and @b\n", 3, 9},
      {"literal with indicators and comment", "m: |2- # why\n  a\n     @b\n", 3, 6},
      {"folded", "m: >-\n  a or\n\n  c and @b\n", 4, 9},
      {"folded, more indented", "m: >\n  a\n    c\n  @b\n", 4, 3},
      {"in a flow mapping", "{m: a @b, n: 1}", 1, 7},
      {"wide characters before", "m: \"\xc3\xa9 @b\"", 1, 8},
      {"carriage returns", "m: a\r\n   or\r\n  @b\r\n", 3, 3},
      {"explicit key", "? m\n:   a @b\n", 2, 7},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.name);
    const SpecSource source{.text = test.text, .file = "f"};
    const auto root = parse_yaml(source);
    ASSERT_TRUE(root.ok()) << render(root.error());
    const YamlNode& node = root->find("m")->value;
    const auto positions = scalar_positions(source, node);
    ASSERT_EQ(positions.size(), node.text.size() + 1);
    const std::size_t at = node.text.find('@');
    ASSERT_NE(at, std::string::npos) << node.text;
    EXPECT_EQ(positions[at].line, test.line) << node.text;
    EXPECT_EQ(positions[at].column, test.column) << node.text;
    // The end stands right behind the last character, `b`.
    EXPECT_EQ(positions.back().line, test.line);
    EXPECT_EQ(positions.back().column, test.column + 2);
  }
}

}  // namespace
}  // namespace attune
