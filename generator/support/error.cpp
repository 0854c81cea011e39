#include "generator/support/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune {

std::string render(const Error& error) {
  std::string text;
  if (!error.file.empty()) text += error.file + ":";
  if (error.span.line > 0) text += fmt::format("{}:{}:", error.span.line, error.span.column);
  if (!text.empty()) text += ' ';
  text += fmt::format("error: {} [{}]\n", error.message, error.id);
  if (error.span.line > 0 && !error.source_line.empty()) {
    text += fmt::format("{:>5} | {}\n      | ", error.span.line, error.source_line);
    // Tabs stay tabs, so that the caret lands where the terminal shows the character.
    for (int column = 1; column < error.span.column; ++column) {
      const auto at = static_cast<std::size_t>(column - 1);
      const bool tab = at < error.source_line.size() && error.source_line[at] == '\t';
      text += tab ? '\t' : ' ';
    }
    text += '^' + std::string(static_cast<std::size_t>(std::max(error.span.length - 1, 0)), '~');
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
