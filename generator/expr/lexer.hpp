// Text -> tokens. Newlines are blanks and `#` starts a comment that ends with its line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/expr/parser.hpp"
#include "generator/support/result.hpp"

namespace attune::expr {

// Bytes [begin, end) of the text being read.
struct TextRange {
  std::size_t begin = 0, end = 0;
};

enum class TokenKind : std::uint8_t {
  kEnd,
  kName,     // keywords included: they are names with a meaning
  kInteger,  // integer; at most 2147483648, which only a minus sign makes an int32
  kReal,     // real
  kSymbol,   // an operator, bracket, comma or colon
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  TextRange range;
  std::string_view text;  // the token as written
  std::int64_t integer = 0;
  double real = 0;  // the nearest float32
};

// Longest text that is read at all, in bytes.
constexpr std::size_t kMaxTextBytes = 16384;

// The last token is kEnd. `text` must outlive the tokens.
Result<std::vector<Token>> tokenize(std::string_view text, const SourceOrigin& origin);

// An error of kind kBadInput at `range` of `text`, placed in the user's file.
Error error_at(std::string_view text, const SourceOrigin& origin, TextRange range, std::string id,
               std::string message, std::string hint = {});
SourceSpan to_span(std::string_view text, const SourceOrigin& origin, TextRange range);

}  // namespace attune::expr
