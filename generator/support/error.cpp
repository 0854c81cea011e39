#include "generator/support/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace attune {

std::string render(const Error& error, Severity severity) {
  std::string text;
  if (!error.file.empty()) text += error.file + ":";
  if (error.span.line > 0) text += fmt::format("{}:{}:", error.span.line, error.span.column);
  if (!text.empty()) text += ' ';
  text += fmt::format("{}: {} [{}]\n", severity == Severity::kError ? "error" : "warning",
                      error.message, error.id);
  if (error.span.line > 0 && !error.source_line.empty()) {
    text += fmt::format("{:>5} | {}\n      | ", error.span.line, error.source_line);
    // Tabs stay tabs and a character of several bytes takes one place, so that the caret lands
    // where the terminal shows the character.
    const auto column = static_cast<std::size_t>(std::max(error.span.column, 1));
    const std::string_view line = error.source_line;
    const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
    for (std::size_t at = 0; at + 1 < column; ++at) {
      if (at >= line.size() || !continues(line[at])) {
        text += at < line.size() && line[at] == '\t' ? '\t' : ' ';
      }
    }
    const std::string_view marked =
        line.substr(std::min(column - 1, line.size()),
                    static_cast<std::size_t>(std::max(error.span.length, 1)));
    const auto places =
        marked.size() - static_cast<std::size_t>(std::ranges::count_if(marked, continues));
    text += '^' + std::string(std::max<std::size_t>(places, 1) - 1, '~');
    text += '\n';
  }
  if (!error.hint.empty()) text += fmt::format("      = {}\n", error.hint);
  if (!error.detail.empty()) {
    text += error.detail;
    if (text.back() != '\n') text += '\n';
  }
  return text;
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kFailed:
      return 1;
    case ErrorKind::kBadInput:
    case ErrorKind::kUnsupported:
      return 2;
    case ErrorKind::kUnavailable:
      return 3;
  }
  return 1;
}

}  // namespace attune
