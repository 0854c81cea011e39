#include "generator/spec/number.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

namespace attune {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_not_finite(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  std::string_view word = lower;
  if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
  if (word.starts_with('.')) word.remove_prefix(1);
  return word == "nan" || word == "inf" || word == "infinity";
}

}  // namespace

ParsedNumber parse_number(std::string_view text) {
  if (text.size() <= 10 && is_not_finite(text)) return {.status = ParsedNumber::Status::kNotFinite};
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const std::string_view unsigned_digits =
      digits.starts_with('-') && digits.size() == text.size() ? digits.substr(1) : digits;
  if (unsigned_digits.empty() || !(is_digit(unsigned_digits[0]) || unsigned_digits[0] == '.'))
    return {};
  const char* end = digits.data() + digits.size();

  ParsedNumber number;
  if (std::ranges::all_of(unsigned_digits, is_digit)) {
    const auto [stop, problem] = std::from_chars(digits.data(), end, number.integer);
    if (problem == std::errc::result_out_of_range)
      return {.status = ParsedNumber::Status::kOverflow};
    number.status = ParsedNumber::Status::kInteger;
    number.real = static_cast<double>(number.integer);
    return number;
  }
  const auto [stop, problem] = std::from_chars(digits.data(), end, number.real);
  if (stop != end || problem == std::errc::invalid_argument) return {};
  if (problem == std::errc::result_out_of_range) return {.status = ParsedNumber::Status::kOverflow};
  number.status = ParsedNumber::Status::kReal;
  return number;
}

}  // namespace attune
