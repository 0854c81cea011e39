// Results go to stdout, talk to stderr. Colours only where a person looks, never against NO_COLOR.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/command.hpp"
#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {

// Results.
void print(std::string_view text);
void print_json(const Json& value);

// Columns as wide as their widest cell, two spaces between; the first column left-aligned, numbers
// right.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "2 x 32/8 x 8192": batch, heads and key heads, lengths.
std::string short_shape(const ProblemShape& shape);

// Three digits at least, and no exponent for what is large: "0.25", "12.5", "1500".
std::string short_number(double value);

// "1 problem", "2 problems".
std::string counted(std::size_t count, std::string_view noun);

// Talk.
void note(std::string_view text);
void warn(std::string_view text);
// A warning that has a place and a hint.
void warn(const Error& warning);
// Shows the error and returns its exit code.
ExitCode fail(const Error& error);
// The command's own exit code, or its error shown.
ExitCode finish(const Result<ExitCode>& outcome);

enum class Stream { kOut, kErr };
bool is_terminal(Stream stream);
// True when the stream is a terminal that shows colours and the user did not set NO_COLOR.
bool has_colour(Stream stream);
enum class Colour { kBold, kDim, kRed, kGreen, kYellow, kCyan };
// `text` in the colour, or as it is where there are none.
std::string paint(std::string_view text, Colour colour, Stream stream = Stream::kOut);

enum class Talk { kErrors, kNormal, kAll };
// Sets up stderr. Call once, before anything is said.
void start_output(Talk talk);
// Flushes; `code`, or 1 when results could not be written. A reader that left early is no failure.
ExitCode finish_output(ExitCode code);

}  // namespace attune::cli
