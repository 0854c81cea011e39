#include "generator/spec/yaml_tree.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <exception>
#include <istream>
#include <optional>
#include <streambuf>

#include "generator/spec/limits.hpp"

namespace attune {
namespace {

constexpr std::size_t kMaxQuoted = 48;

SourceSpan to_span(const YAML::Mark& mark, int length = 1) {
  if (mark.is_null()) return {};
  return {.line = mark.line + 1, .column = mark.column + 1, .length = length};
}

// The bytes of a string_view as a stream, without a copy.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

std::string_view line_of(std::string_view text, int line) {
  std::size_t start = 0;
  for (int i = 1; i < line; ++i) {
    const std::size_t end = text.find('\n', start);
    if (end == std::string_view::npos) return {};
    start = end + 1;
  }
  std::string_view shown = text.substr(start, text.find('\n', start) - start);
  if (!shown.empty() && shown.back() == '\r') shown.remove_suffix(1);
  return shown;
}

// yaml-cpp takes the end of the text for a closing quote.
bool is_closed(std::string_view text, const YamlNode& scalar) {
  const char quote = scalar.offset < text.size() ? text[scalar.offset] : ' ';
  if (scalar.plain || (quote != '"' && quote != '\'')) return true;
  for (std::size_t at = scalar.offset + 1; at < text.size(); ++at) {
    const bool doubled = quote == '\'' && text.substr(at, 2) == "''";
    if (doubled || (quote == '"' && text[at] == '\\')) {
      ++at;
    } else if (text[at] == quote) {
      return true;
    }
  }
  return false;
}

// Where yaml-cpp stopped; it counts what it fails to read behind the end of the text.
SourceSpan to_span(const SpecSource& source, const YAML::Exception& exception) {
  SourceSpan span = to_span(exception.mark);
  const auto lines = 1 + std::ranges::count(source.text, '\n');
  span.line = static_cast<int>(std::min<std::ptrdiff_t>(span.line, lines));
  const auto end = static_cast<int>(line_of(source.text, span.line).size()) + 1;
  span.column = std::min(span.column, end);
  return span;
}

// What most often lies behind an error of YAML's grammar.
std::string syntax_hint(const SpecSource& source, const YAML::Exception& exception) {
  const std::string_view line = line_of(source.text, exception.mark.line + 1);
  if (line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string_view::npos) {
    return "YAML indents with blanks, not with tabs";
  }
  if (exception.msg == "illegal map value") return "put a value that holds `: ` into quotes";
  return {};
}

// Builds the tree. After the first error every event is ignored; yaml-cpp bounds its own depth.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const SpecSource& source) : source_(source) {}

  std::optional<Error>& error() { return error_; }
  YamlNode& root() { return root_; }
  bool has_root() const { return has_root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (has_root_) {
      fail("spec-yaml-documents", mark, "a second YAML document", "one file holds one spec");
    }
  }
  void OnDocumentEnd() override {}

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail("spec-yaml-alias", mark, "a YAML alias",
         "specs have no anchors and aliases: write the value out");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (check(mark, "", anchor)) add(make(YamlNode::Kind::kNull, mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!check(mark, tag, anchor)) return;
    YamlNode node = make(YamlNode::Kind::kScalar, mark);
    node.plain = tag != "!";
    node.text = value;
    const std::size_t first_line = std::min(value.find('\n'), value.size());
    node.span.length = static_cast<int>(std::clamp<std::size_t>(first_line, 1, kMaxShownLine));
    if (!is_closed(source_.text, node)) {
      return fail("spec-yaml-syntax", mark, "not YAML: the quote is not closed");
    }
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    start(YamlNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    start(YamlNode::Kind::kMapping, mark, tag, anchor);
  }
  void OnSequenceEnd() override { finish(); }
  void OnMapEnd() override { finish(); }

 private:
  struct Open {
    YamlNode node;
    std::optional<YamlNode> key;  // of a mapping: read, its value not yet
  };

  YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark) const {
    YamlNode node;
    node.kind = kind;
    node.span = to_span(mark);
    node.offset = std::min(static_cast<std::size_t>(std::max(mark.pos, 0)), source_.text.size());
    return node;
  }

  bool check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (error_) return false;
    if (anchor != 0) {
      fail("spec-yaml-alias", mark, "a YAML anchor",
           "specs have no anchors and aliases: write the value out");
    } else if (!tag.empty() && tag != "?" && tag != "!") {
      fail("spec-yaml-tag", mark, "a YAML tag",
           tag.starts_with('!') ? "the key says what type its value has; for `!x` write `not x`"
                                : "the key says what type its value has");
    } else if (++nodes_ > kMaxYamlNodes) {
      fail("spec-too-many", mark, fmt::format("more than {} YAML nodes", kMaxYamlNodes));
    }
    return !error_;
  }

  void start(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
             YAML::anchor_t anchor) {
    if (!check(mark, tag, anchor)) return;
    if (open_.size() >= static_cast<std::size_t>(kMaxYamlNesting)) {
      return fail("spec-yaml-nesting", mark,
                  fmt::format("nested deeper than {} levels", kMaxYamlNesting));
    }
    if (!open_.empty() && expects_key()) {
      return fail("spec-yaml-key", mark, fmt::format("{} as a key", describe(kind)),
                  "a key is a name");
    }
    open_.push_back({make(kind, mark), std::nullopt});
  }

  void finish() {
    if (error_) return;
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  bool expects_key() const {
    return open_.back().node.kind == YamlNode::Kind::kMapping && !open_.back().key;
  }

  void add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      has_root_ = true;
      return;
    }
    Open& top = open_.back();
    if (top.node.items.size() + top.node.entries.size() >= kMaxYamlEntries) {
      return fail("spec-too-many", node.span,
                  fmt::format("more than {} entries in one {}", kMaxYamlEntries,
                              top.node.kind == YamlNode::Kind::kMapping ? "mapping" : "sequence"));
    }
    if (top.node.kind == YamlNode::Kind::kSequence) {
      top.node.items.push_back(std::move(node));
    } else if (top.key) {
      top.node.entries.push_back({std::move(*top.key), std::move(node)});
      top.key.reset();
    } else {
      add_key(top, std::move(node));
    }
  }

  void add_key(Open& top, YamlNode key) {
    if (key.kind != YamlNode::Kind::kScalar) {
      return fail("spec-yaml-key", key.span, fmt::format("{} as a key", describe(key.kind)),
                  "a key is a name");
    }
    if (const YamlEntry* first = top.node.find(key.text)) {
      return fail("spec-duplicate-key", key.span,
                  fmt::format("{} is given twice", quoted(key.text)),
                  fmt::format("first on line {}", first->key.span.line));
    }
    top.key = std::move(key);
  }

  void fail(std::string id, const SourceSpan& span, std::string message, std::string hint = {}) {
    if (!error_) error_ = source_.error(std::move(id), span, std::move(message), std::move(hint));
  }
  void fail(std::string id, const YAML::Mark& mark, std::string message, std::string hint = {}) {
    fail(std::move(id), to_span(mark), std::move(message), std::move(hint));
  }

  const SpecSource& source_;
  std::optional<Error> error_;
  std::vector<Open> open_;
  YamlNode root_;
  bool has_root_ = false;
  std::size_t nodes_ = 0;
};

// The length of the valid UTF-8 sequence at `at` that is no control character, or 0. Tabs and line
// ends count as text, a lone carriage return does not.
std::size_t text_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(at);
  if (lead < 0x80) {
    if (lead == '\r') return byte(at + 1) == '\n' ? 1 : 0;
    return lead == '\n' || lead == '\t' || (lead >= 0x20 && lead != 0x7f) ? 1 : 0;
  }
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  unsigned code = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  constexpr unsigned kSmallest[] = {0, 0, 0xa0, 0x800, 0x10000};  // U+0080 to U+009F are controls
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return lead >= 0xc2 && lead <= 0xf4 && code >= kSmallest[length] && code <= 0x10ffff && !surrogate
             ? length
             : 0;
}

std::optional<Error> check_bytes(const SpecSource& source) {
  if (source.text.size() > kMaxSpecBytes) {
    return source.error(
        "spec-too-large", {},
        fmt::format("the spec has {} bytes, more than {}", source.text.size(), kMaxSpecBytes));
  }
  int line = 1;
  std::size_t line_start = 0;
  for (std::size_t at = 0; at < source.text.size();) {
    const std::size_t length = text_length(source.text, at);
    if (length == 0) {
      Error error = source.error(
          "spec-encoding", {.line = line, .column = static_cast<int>(at - line_start) + 1},
          "a byte that is neither UTF-8 text nor a line end", "save the file as UTF-8");
      error.source_line.clear();  // it holds the very byte that no terminal should see
      return error;
    }
    if (source.text[at] == '\n') {
      ++line;
      line_start = at + 1;
    }
    at += length;
  }
  return std::nullopt;
}

}  // namespace

const YamlEntry* YamlNode::find(std::string_view key) const {
  const auto entry =
      std::ranges::find_if(entries, [&](const YamlEntry& e) { return e.key.text == key; });
  return entry == entries.end() ? nullptr : &*entry;
}

Error SpecSource::error(std::string id, SourceSpan span, std::string message,
                        std::string hint) const {
  const std::string_view line = span.line > 0 ? line_of(text, span.line) : std::string_view();
  return {.kind = ErrorKind::kBadInput,
          .id = std::move(id),
          .message = std::move(message),
          .file = std::string(file),
          .span = span,
          .source_line = std::string(line.size() <= kMaxShownLine ? line : std::string_view()),
          .hint = std::move(hint)};
}

std::string_view describe(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "a scalar";
    case YamlNode::Kind::kSequence:
      return "a sequence";
    case YamlNode::Kind::kMapping:
      return "a mapping";
  }
  return "nothing";
}

std::string quoted(std::string_view text) {
  std::string shown = "`";
  for (std::size_t at = 0; at < text.size();) {
    if (at >= kMaxQuoted) {
      shown += "...";
      break;
    }
    const std::size_t length = text_length(text, at);
    if (length > 1 || (length == 1 && static_cast<unsigned char>(text[at]) >= 0x20)) {
      shown += text.substr(at, length);
    } else {
      shown += '?';
    }
    at += std::max<std::size_t>(length, 1);
  }
  return shown + '`';
}

Result<YamlNode> parse_yaml(const SpecSource& source) {
  if (auto error = check_bytes(source)) return std::move(*error);
  TreeBuilder builder(source);
  try {
    ViewBuffer buffer(source.text);
    std::istream stream(&buffer);
    YAML::Parser parser(stream);
    while (!builder.error() && parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& exception) {
    if (!builder.error()) {
      return source.error("spec-yaml-syntax", to_span(source, exception),
                          "not YAML: " + exception.msg, syntax_hint(source, exception));
    }
  } catch (const std::exception& exception) {
    return source.error("spec-yaml-syntax", {}, fmt::format("not YAML: {}", exception.what()));
  }
  if (builder.error()) return std::move(*builder.error());
  if (!builder.has_root() || builder.root().kind == YamlNode::Kind::kNull) {
    return source.error("spec-empty", {.line = 1, .column = 1}, "the spec is empty",
                        "a spec starts with `attune: 1`");
  }
  if (builder.root().kind != YamlNode::Kind::kMapping) {
    return source.error("spec-type", builder.root().span,
                        fmt::format("expected a mapping, found {}", describe(builder.root().kind)),
                        "a spec starts with `attune: 1`");
  }
  return std::move(builder.root());
}

}  // namespace attune
