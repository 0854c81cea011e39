#include "generator/expr/lexer.hpp"

#include <gtest/gtest.h>

namespace attune::expr {
namespace {

std::string lexed(std::string_view text) {
  auto tokens = tokenize(text, {});
  if (!tokens.ok()) return tokens.error().id;
  std::string line;
  for (const Token& token : *tokens) {
    constexpr std::string_view kKinds[] = {"end", "name", "int", "real", "sym"};
    line += std::string(kKinds[static_cast<int>(token.kind)]) + ":" + std::string(token.text) + " ";
  }
  return line;
}

TEST(Lexer, WhatIsNotSeenIsShownByItsNumber) {
  for (const auto& [text, shown] : {std::pair{"a \xe2\x80\x8b b", "U+200B"},
                                    {"\xef\xbb\xbf"
                                     "a",
                                     "U+FEFF"},
                                    {"a\xe2\x80\x89+ b", "U+2009"},
                                    {"a \xe2\x80\xa6", "`\xe2\x80\xa6`"}}) {
    const auto tokens = tokenize(text, {});
    ASSERT_FALSE(tokens.ok());
    EXPECT_EQ(tokens.error().message, std::string("unexpected character ") + shown);
  }
}

TEST(Lexer, Tokens) {
  struct Row {
    std::string_view text, tokens;
  };
  constexpr Row kRows[] = {
      {"", "end: "},
      {"a<=b", "name:a sym:<= name:b end: "},
      {"a<b", "name:a sym:< name:b end: "},
      {"7//2/1", "int:7 sym:// int:2 sym:/ int:1 end: "},
      {"1.5e-3 .5 2. 1e5", "real:1.5e-3 real:.5 real:2. real:1e5 end: "},
      {"1e-60", "real:1e-60 end: "},
      {"x # a comment\n + y#", "name:x sym:+ name:y end: "},
      {"doc[b,q_idx]!=-1", "name:doc sym:[ name:b sym:, name:q_idx sym:] sym:!= sym:- int:1 end: "},
      {"2147483648", "int:2147483648 end: "},
      {"2147483649", "expr-number-out-of-range"},
      {"1e39", "expr-number-out-of-range"},
      {"99999999999999999999999", "expr-number-out-of-range"},
      {"12ab", "expr-bad-number"},
      {"0x10", "expr-bad-number"},
      {"1.2.3", "expr-bad-number"},
      {"a<<1>>b&c|d^e",
       "name:a sym:<< int:1 sym:>> name:b sym:& name:c sym:| name:d sym:^ name:e end: "},
      {"a && b", "expr-unknown-operator"},
      {"a ** b", "expr-unknown-operator"},
      {"!a", "expr-unknown-operator"},
      {"a @ b", "expr-bad-character"},
      {"\xff", "expr-bad-character"},
      {std::string_view("a\0b", 3), "expr-bad-character"},
  };
  for (const Row& row : kRows) EXPECT_EQ(lexed(row.text), row.tokens) << row.text;
}

TEST(Lexer, ALongTextIsRefusedUnread) {
  EXPECT_EQ(lexed(std::string(kMaxTextBytes, ' ')), "end: ");
  EXPECT_EQ(lexed(std::string(kMaxTextBytes + 1, ' ')), "expr-too-long");
}

}  // namespace
}  // namespace attune::expr
