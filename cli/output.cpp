#include "cli/output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace attune::cli {
namespace {

// As start_output() was told.
Talk allowed = Talk::kNormal;

// Enough for a compiler's first complaints.
constexpr int kDetailLines = 24;

Error shortened(Error error) {
  std::size_t end = 0;
  for (int line = 0; line < kDetailLines && end != std::string::npos; ++line) {
    end = error.detail.find('\n', end == 0 ? 0 : end + 1);
  }
  if (end != std::string::npos && end + 1 < error.detail.size()) {
    error.detail.resize(end + 1);
    error.detail += "... (-v shows all)\n";
  }
  return error;
}

// errno of the first write to stdout that failed.
int write_error = 0;

const char* code(Colour colour) {
  switch (colour) {
    case Colour::kBold:
      return "\033[1m";
    case Colour::kDim:
      return "\033[2m";
    case Colour::kRed:
      return "\033[31m";
    case Colour::kGreen:
      return "\033[32m";
    case Colour::kYellow:
      return "\033[33m";
    case Colour::kCyan:
      return "\033[36m";
  }
  return "";
}

bool is_number(std::string_view cell) {
  return !cell.empty() && (cell[0] == '-' || cell[0] == '.' || (cell[0] >= '0' && cell[0] <= '9'));
}

// Characters, not bytes: every byte of UTF-8 but the continuations.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// On stderr, `word` in its colour.
void show(std::string text, std::string_view word, Colour colour) {
  std::fflush(stdout);
  const auto at = text.find(word);
  if (at != std::string::npos) text.replace(at, word.size(), paint(word, colour, Stream::kErr));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && write_error == 0) {
    write_error = errno;
  }
}

void print_json(const Json& value) { print(value.dump(2) + "\n"); }

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    if (widths.size() < row.size()) widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      const std::string& cell = rows_[r][i];
      const std::string pad(widths[i] - width(cell), ' ');
      // A header stands over its column as the column's first value does.
      const bool right =
          i > 0 && is_number(rows_.size() > 1 && i < rows_[1].size() ? rows_[1][i] : cell);
      if (i > 0) line += "  ";
      line += right ? pad + cell : cell + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += (r == 0 ? paint(line, Colour::kBold) : line) + "\n";
  }
  return text;
}

std::string short_shape(const ProblemShape& shape) {
  const std::string heads = shape.heads == shape.kv_heads
                                ? fmt::to_string(shape.heads)
                                : fmt::format("{}/{}", shape.heads, shape.kv_heads);
  const std::string lengths = shape.q_len == shape.kv_len
                                  ? fmt::to_string(shape.q_len)
                                  : fmt::format("{}:{}", shape.q_len, shape.kv_len);
  return fmt::format("{} x {} x {}", shape.batch, heads, lengths);
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string short_number(double value) {
  return value < 1000 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

void note(std::string_view text) {
  if (allowed != Talk::kErrors)
    show(fmt::format("attune: info: {}\n", text), "info", Colour::kGreen);
}

void warn(std::string_view text) {
  if (allowed != Talk::kErrors)
    show(fmt::format("attune: warning: {}\n", text), "warning", Colour::kYellow);
}

void warn(const Error& warning) {
  if (allowed != Talk::kErrors)
    show(render(warning, Severity::kWarning), "warning:", Colour::kYellow);
}

ExitCode fail(const Error& error) {
  show(allowed == Talk::kAll ? render(error) : render(shortened(error)), "error:", Colour::kRed);
  return exit_code(error.kind);
}

ExitCode finish(const Result<ExitCode>& outcome) {
  return outcome.ok() ? outcome.value() : fail(outcome.error());
}

bool is_terminal(Stream stream) {
  return isatty(stream == Stream::kOut ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

bool has_colour(Stream stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return is_terminal(stream);
}

std::string paint(std::string_view text, Colour colour, Stream stream) {
  if (!has_colour(stream)) return std::string(text);
  return fmt::format("{}{}\033[0m", code(colour), text);
}

void start_output(Talk talk) { allowed = talk; }

ExitCode finish_output(ExitCode code) {
  if (std::fflush(stdout) != 0 && write_error == 0) write_error = errno;
  if (write_error == 0 || write_error == EPIPE) return code;
  return std::max(
      code, fail(Error{.kind = ErrorKind::kFailed,
                       .id = "write-results",
                       .message = fmt::format("cannot write the results: {}",
                                              std::generic_category().message(write_error))}));
}

}  // namespace attune::cli
