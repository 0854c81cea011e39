#include "cli/sequence_options.hpp"

#include <fmt/format.h>

#include <climits>
#include <fstream>
#include <sstream>

#include "generator/plan/length_class.hpp"
#include "generator/spec/draw_lengths.hpp"
#include "generator/spec/limits.hpp"

namespace attune::cli {
namespace {

// A length takes ten characters at most, and one between.
constexpr std::streamsize kMostBytes = 16 * kMaxBatch;

Result<std::string> lengths_text(const std::string& option) {
  if (!option.starts_with('@')) return option;
  const std::string path = option.substr(1);
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), kMostBytes + 1);
  if (file.bad() || (!file && !file.eof())) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "lengths-file",
                 .message = fmt::format("cannot read `{}`", path)};
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (std::ssize(text) > kMostBytes) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "lengths-file",
                 .message = fmt::format("`{}` has more than {} bytes", path, kMostBytes)};
  }
  // What is no list is no description either: a file would hide what was asked for.
  if (text.find_first_not_of("0123456789, \t\r\n") != std::string::npos || text.empty()) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "lengths-list",
                 .message = fmt::format("`{}` is no list of lengths", path),
                 .hint = "numbers between commas, blanks or line ends"};
  }
  return text;
}

Status give_pages(const Options& options, AttentionSpec& spec) {
  if (options.page_size == 0 && options.shared_prefix == 0) return ok_status();
  if (!is_paged(spec)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "option-page-size",
                 .message = fmt::format("{} is given, and {} has layout `{}`",
                                        options.page_size != 0 ? "--page-size" : "--shared-prefix",
                                        spec.name, to_string(spec.layout)),
                 .hint = "pages go with `layout: paged`"};
  }
  if (options.page_size != 0) spec.page_size = options.page_size;
  if (options.shared_prefix != 0) spec.shared_prefix = options.shared_prefix;
  return ok_status();
}

}  // namespace

void add_sequences(CommandLine& line, Options& options) {
  line.option("--lengths", options.lengths,
              "keys of the sequences, with layout thd or paged: equal, \"uniform(0.3, 1)\" of the "
              "longest, \"skewed(0.5)\" where one has that share of all, a list, or @FILE of one; "
              "default: the spec's `tune: lengths`, else drawn");
  line.option("--page-size", options.page_size,
              "rows of a page, with layout paged; default: the spec's `tune: page_size`, else 16",
              {.range = {{1, kMaxPageSize}}});
  line.option(
      "--shared-prefix", options.shared_prefix,
      "keys that all sequences begin with alike, with layout paged: whole pages of them are "
      "the same pages; default: 0",
      {.range = {{0, INT_MAX}}});
}

bool names_sequences(const Options& options) {
  return !options.lengths.empty() || options.page_size != 0 || options.shared_prefix != 0;
}

Status give_sequences(const Options& options, std::span<const ProblemShape> shapes,
                      AttentionSpec& spec) {
  ATT_CHECK(give_pages(options, spec));
  if (!options.lengths.empty()) {
    ATT_TRY(const std::string text, lengths_text(options.lengths));
    auto lengths = parse_lengths(text);
    if (!lengths.ok()) {
      lengths.error().file = "--lengths";
      return lengths.error();
    }
    spec.lengths = *std::move(lengths);
  }
  for (const ProblemShape& shape : shapes) ATT_CHECK(check_lengths(spec, shape));
  return ok_status();
}

std::string problem_text(const AttentionSpec& spec, const ProblemShape& shape) {
  const std::string label = lengths_label(spec);
  return label.empty() ? to_string(shape) : fmt::format("{}; {}", to_string(shape), label);
}

}  // namespace attune::cli
