// YAML text -> a small tree that knows where everything stands. Bounded in size, depth and count,
// without aliases and tags, keys unique: what is left is what a spec can mean.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/support/result.hpp"

namespace attune {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  bool plain = true;  // a scalar without quotes, `|` or `>`
  std::string text;   // of a scalar, decoded
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;
  std::size_t offset = 0;  // of the first byte in the text
  SourceSpan span;

  const YamlEntry* find(std::string_view key) const;
};

struct YamlEntry {
  YamlNode key;  // a scalar
  YamlNode value;
};

// The user's text and its name, for errors.
struct SpecSource {
  std::string_view text;
  std::string_view file;

  // An Error of kind kBadInput with file and source line filled in.
  Error error(std::string id, SourceSpan span, std::string message, std::string hint = {}) const;
};

// A longer line is no help above a caret; errors leave it out.
constexpr std::size_t kMaxShownLine = 400;

// "a mapping", "a sequence", "a scalar", "nothing"
std::string_view describe(YamlNode::Kind kind);

// User text for a message: in backquotes, shortened, control characters shown as `?`.
std::string quoted(std::string_view text);

// What Windows' editors put before a text tells nothing.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

// The root is a mapping. Never throws, whatever the bytes.
Result<YamlNode> parse_yaml(const SpecSource& source);

// Where each byte of the scalar's decoded text stands in the file, and its end:
// node.text.size() + 1 spans.
std::vector<SourceSpan> scalar_positions(const SpecSource& source, const YamlNode& node);

}  // namespace attune
