#include "generator/expr/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "generator/expr/foreign.hpp"

namespace attune::expr {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Longest first, so that `//` is not read as two divisions.
constexpr std::array<std::string_view, 26> kSymbols = {
    "//", "==", "!=", "<<", ">>", "<=", ">=", "+", "-", "*", "/", "%", "<",
    ">",  "&",  "|",  "^",  "(",  ")",  "[",  "]", ",", ":", "=", "{", "}"};

// The character that `text` begins with: bytes 10xxxxxx go on with it.
std::string_view first_character(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < text.size() && bytes < 4 && (text[bytes] & 0xc0) == 0x80) ++bytes;
  return text.substr(0, bytes);
}

std::string shown(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  const bool is_ascii = character.size() == 1 && first >= ' ' && first <= '~';
  // Spaces, joints and directions, and the mark at a file's begin.
  const bool is_unseen =
      character == "\xef\xbb\xbf" || (character.size() == 3 && character.starts_with("\xe2\x80") &&
                                      static_cast<unsigned char>(character[2]) <= 0x8f);
  if (is_unseen) {
    const auto low = [&](std::size_t at) { return static_cast<unsigned>(character[at]) & 0x3f; };
    return fmt::format("U+{:04X}", (first & 0x0fu) << 12 | low(1) << 6 | low(2));
  }
  if (is_ascii || (character.size() > 1 && first >= 0xc3)) return fmt::format("`{}`", character);
  return fmt::format("byte 0x{:02x}", first);  // no character, or one that is not seen
}

}  // namespace

SourceSpan to_span(std::string_view text, const SourceOrigin& origin, TextRange range) {
  const std::size_t begin = std::min(range.begin, text.size());
  if (begin < origin.positions.size()) {
    SourceSpan span = origin.positions[begin];
    const std::size_t last = std::clamp(range.end, begin + 1, origin.positions.size()) - 1;
    // A span that goes on in the next line is shown by its first character.
    if (origin.positions[last].line == span.line)
      span.length =
          std::max(1, origin.positions[last].column + origin.positions[last].length - span.column);
    return span;
  }
  const std::string_view before = text.substr(0, begin);
  const auto newlines = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t line_begin = newlines == 0 ? 0 : before.rfind('\n') + 1;
  const std::size_t line_end = std::min(text.find('\n', begin), text.size());
  SourceSpan span;
  span.line = origin.line + newlines;
  span.column = static_cast<int>(begin - line_begin) +
                (newlines == 0 ? origin.column : origin.continuation_column);
  span.length =
      std::max(1, static_cast<int>(std::min(range.end, line_end)) - static_cast<int>(begin));
  return span;
}

Error error_at(std::string_view text, const SourceOrigin& origin, TextRange range, std::string id,
               std::string message, std::string hint) {
  Error error;
  error.kind = ErrorKind::kBadInput;
  error.id = std::move(id);
  error.message = std::move(message);
  error.file = origin.file;
  error.span = to_span(text, origin, range);
  error.hint = std::move(hint);

  std::string_view lines = origin.whole_file;
  int line = error.span.line;
  if (lines.empty()) {
    lines = text;
    line -= origin.line - 1;
  }
  for (; line > 1 && !lines.empty(); --line) {
    const std::size_t newline = lines.find('\n');
    lines = newline == std::string_view::npos ? std::string_view() : lines.substr(newline + 1);
  }
  error.source_line = lines.substr(0, lines.find_first_of("\r\n"));
  // Without the file the line starts at the text's first byte, not at the file's first column.
  if (origin.whole_file.empty() && !error.source_line.empty()) {
    const int indent =
        (error.span.line == origin.line ? origin.column : origin.continuation_column) - 1;
    error.source_line.insert(0, static_cast<std::size_t>(std::clamp(indent, 0, 200)), ' ');
  }
  return error;
}

Result<std::vector<Token>> tokenize(std::string_view text, const SourceOrigin& origin) {
  std::vector<Token> tokens;
  if (text.size() > kMaxTextBytes) {
    // The text itself is not shown: it may be anything.
    return error_at(text.substr(0, 0), origin, {}, "expr-too-long",
                    fmt::format("the expression has {} bytes, at most {} are allowed", text.size(),
                                kMaxTextBytes));
  }
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      ++at;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    Token token;
    token.range.begin = at;
    if (is_name_start(c)) {
      token.kind = TokenKind::kName;
      while (at < text.size() && is_name_part(text[at])) ++at;
      const auto part_follows = [&] {
        return at + 1 < text.size() && text[at] == '.' && is_name_start(text[at + 1]);
      };
      if (part_follows()) {
        do {
          ++at;
          while (at < text.size() && is_name_part(text[at])) ++at;
        } while (part_follows());
        const std::string_view dotted = text.substr(token.range.begin, at - token.range.begin);
        return error_at(text, origin, {token.range.begin, at}, "expr-unknown-name",
                        fmt::format("unknown name `{}`", dotted), dotted_name_hint(dotted));
      }
    } else if (is_digit(c) || (c == '.' && at + 1 < text.size() && is_digit(text[at + 1]))) {
      bool real = false;
      while (at < text.size() && is_digit(text[at])) ++at;
      if (at < text.size() && text[at] == '.') {
        real = true;
        ++at;
        while (at < text.size() && is_digit(text[at])) ++at;
      }
      if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
        std::size_t exponent = at + 1;
        if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
        if (exponent < text.size() && is_digit(text[exponent])) {
          real = true;
          at = exponent;
          while (at < text.size() && is_digit(text[at])) ++at;
        }
      }
      if (at < text.size() && (is_name_part(text[at]) || text[at] == '.')) {
        while (at < text.size() && (is_name_part(text[at]) || text[at] == '.')) ++at;
        return error_at(text, origin, {token.range.begin, at}, "expr-bad-number",
                        fmt::format("`{}` is not a number",
                                    text.substr(token.range.begin, at - token.range.begin)),
                        "numbers are decimal: 4096, 0.5, 1e-3");
      }
      const std::string_view digits = text.substr(token.range.begin, at - token.range.begin);
      token.kind = real ? TokenKind::kReal : TokenKind::kInteger;
      bool fits;
      if (real) {
        float value = 0;
        fits =
            std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc();
        // from_chars reports underflow as out of range too; such a literal is zero.
        if (!fits) {
          double wide = 0;
          const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), wide);
          fits = result.ec == std::errc() && std::abs(wide) < 1;
          value = static_cast<float>(fits ? wide : 0);
        }
        token.real = value;
      } else {
        fits = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer).ec ==
                   std::errc() &&
               token.integer <= std::int64_t{1} << 31;
      }
      if (!fits) {
        return error_at(text, origin, {token.range.begin, at}, "expr-number-out-of-range",
                        fmt::format("`{}` does not fit {}", digits, real ? "float32" : "int32"));
      }
    } else {
      token.kind = TokenKind::kSymbol;
      for (const ForeignOperator& foreign : foreign_operators()) {
        // `!=` is ours although `!` is not.
        if (text.substr(at).starts_with(foreign.text) && !text.substr(at).starts_with("!=")) {
          return error_at(text, origin, {at, at + foreign.text.size()}, "expr-unknown-operator",
                          fmt::format("unknown operator `{}`", foreign.text),
                          std::string(foreign.hint));
        }
      }
      const auto symbol = std::find_if(kSymbols.begin(), kSymbols.end(), [&](std::string_view s) {
        return text.substr(at).starts_with(s);
      });
      if (symbol == kSymbols.end()) {
        const std::string_view character = first_character(text.substr(at));
        return error_at(text, origin, {at, at + character.size()}, "expr-bad-character",
                        "unexpected character " + shown(character),
                        c == '"' || c == '\'' ? "expressions hold no text" : "");
      }
      at += symbol->size();
    }
    token.range.end = at;
    token.text = text.substr(token.range.begin, at - token.range.begin);
    tokens.push_back(token);
  }
  Token end;
  end.range = {text.size(), text.size()};
  tokens.push_back(end);
  return tokens;
}

}  // namespace attune::expr
