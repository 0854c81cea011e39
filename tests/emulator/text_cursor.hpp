// Reads C++ or PTX text from front to back.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace attune::emulator {

class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  static bool is_word_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  char take() {
    if (at_end()) throw std::runtime_error("source ends within a statement");
    return text_[at_++];
  }
  void skip_space() {
    while (is_space(peek())) ++at_;
  }

  // A digit may stand in front, as in a number.
  bool is_word() const { return is_word_letter(peek()); }
  std::string_view take_word() {
    const std::size_t begin = at_;
    while (is_word()) ++at_;
    if (at_ == begin) throw std::runtime_error("a name is missing: " + excerpt());
    return text_.substr(begin, at_ - begin);
  }
  // Skips space in front of it if it is.
  bool next_word_is(std::string_view word) {
    const std::size_t begin = at_;
    skip_space();
    const std::size_t name = at_;
    while (is_word()) ++at_;
    const bool same = text_.substr(name, at_ - name) == word;
    at_ = same ? name : begin;
    return same;
  }

  bool is_quote() const { return peek() == '"' || peek() == '\''; }
  // With its quotes.
  std::string_view take_quoted() {
    const std::size_t begin = at_;
    const char quote = take();
    while (peek() != quote) {
      if (take() == '\\') take();
    }
    take();
    return text_.substr(begin, at_ - begin);
  }

  // What the next `(` and its `)` enclose.
  std::string_view take_parenthesised() {
    skip_space();
    if (take() != '(') throw std::runtime_error("a ( is missing: " + excerpt());
    const std::size_t begin = at_;
    for (int depth = 1;;) {
      if (is_quote()) {
        take_quoted();
        continue;
      }
      const char c = take();
      if (c == '(') ++depth;
      if (c == ')' && --depth == 0) return text_.substr(begin, at_ - 1 - begin);
    }
  }

  // What stands before the next `end`, which is taken, too. Brackets and quotes are passed over.
  std::string_view take_until(char end) {
    const std::string_view item = pass_item(end);
    take();
    return item;
  }
  // The same, or all that is left.
  std::string_view take_item(char end) {
    const std::string_view item = pass_item(end);
    if (!at_end()) take();
    return item;
  }

 private:
  std::string_view pass_item(char end) {
    const std::size_t begin = at_;
    int depth = 0;
    while (!at_end() && (depth > 0 || peek() != end)) {
      if (is_quote()) {
        take_quoted();
        continue;
      }
      const char c = take();
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') --depth;
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string excerpt() const { return std::string(text_.substr(at_, 60)); }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace attune::emulator
