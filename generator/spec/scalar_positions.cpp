// Aligns a scalar's decoded text with the file. Outside of escapes, decoding only adds, drops and
// joins blanks, so walking both texts and pairing what is not blank finds every character.
#include <algorithm>

#include "generator/spec/yaml_tree.hpp"

namespace attune {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Walker {
 public:
  Walker(std::string_view text, const YamlNode& node)
      : text_(text), at_(node.offset), line_(node.span.line), column_(node.span.column) {
    style_ = node.plain || done() ? ' ' : text_[at_];
    if (style_ == '"' || style_ == '\'') step();
    if (style_ == '|' || style_ == '>') {
      while (!done() && text_[at_] != '\n') step();
    }
  }

  // The place of one decoded byte.
  SourceSpan place(char decoded) {
    if (escape_bytes_ > 0) return --escape_bytes_, escape_;
    if (style_ == '"' && escape()) return escape_;
    if (is_blank(decoded)) {
      const SourceSpan here = span();
      if (!done() && is_blank(text_[at_])) step();
      return here;
    }
    skip_blanks();
    const SourceSpan here = span();
    if (style_ == '\'' && text_.substr(at_, 2) == "''") step();
    step();
    return here;
  }

  SourceSpan span() const { return {.line = line_, .column = column_}; }

 private:
  bool done() const { return at_ >= text_.size(); }

  void step() {
    if (done()) return;
    if (text_[at_++] == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
  }

  void skip_blanks() {
    while (!done() && is_blank(text_[at_])) step();
  }

  // At an escape: steps over it, remembers how many bytes it decodes to.
  bool escape() {
    std::size_t ahead = at_;
    while (ahead < text_.size() && is_blank(text_[ahead])) ++ahead;
    // An escaped line end decodes to nothing; one behind blanks belongs to what follows them.
    while (text_.substr(ahead, 2) == "\\\n" || text_.substr(ahead, 3) == "\\\r\n") {
      while (at_ <= ahead) step();
      skip_blanks();
      ahead = at_;
    }
    if (done() || text_[at_] != '\\') return false;
    escape_ = span();
    step();
    const char kind = done() ? ' ' : text_[at_];
    step();
    const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    unsigned code = 0;
    for (int i = 0; i < digits && !done(); ++i, step()) {
      const char c = text_[at_];
      code = code * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (kind == 'N' || kind == '_') code = 0x85;
    if (kind == 'L' || kind == 'P') code = 0x2028;
    escape_bytes_ = code >= 0x10000 ? 3 : code >= 0x800 ? 2 : code >= 0x80 ? 1 : 0;
    return true;
  }

  std::string_view text_;
  std::size_t at_;
  int line_, column_;
  char style_ = ' ';
  SourceSpan escape_;
  int escape_bytes_ = 0;  // still to come of the last escape
};

}  // namespace

std::vector<SourceSpan> scalar_positions(const SpecSource& source, const YamlNode& node) {
  Walker walker(source.text, node);
  std::vector<SourceSpan> positions;
  positions.reserve(node.text.size() + 1);
  SourceSpan end = walker.span();
  for (const char c : node.text) {
    positions.push_back(walker.place(c));
    if (!is_blank(c)) end = walker.span();
  }
  positions.push_back(end);  // behind the last character that is not blank
  return positions;
}

}  // namespace attune
