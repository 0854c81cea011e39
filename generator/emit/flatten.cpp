#include "generator/emit/flatten.hpp"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "generator/support/embedded.hpp"

namespace attune {
namespace {

constexpr std::string_view kHeadPath = "templates/kernels/head.cuh";
// The example of what the head of a backward kernel has beside that: the real head has all of it.
constexpr std::string_view kBackwardHeadPath = "templates/kernels/backward_head.cuh";
// The example of what stands in its place where a kernel appends to a cache.
constexpr std::string_view kAppendHeadPath = "templates/kernels/append_head.cuh";
constexpr std::string_view kInclude = "#include";

std::optional<std::string_view> find_template(std::string_view path) {
  for (const EmbeddedFile& file : embedded_templates()) {
    if (file.path == path) return file.text;
  }
  return std::nullopt;
}

// "templates/x" of `#include "templates/x"`; empty for any other include.
std::string_view include_path(std::string_view line) {
  const auto open = line.find('"');
  const auto close = line.rfind('"');
  if (open == std::string_view::npos || close <= open) return {};
  const std::string_view path = line.substr(open + 1, close - open - 1);
  return path.starts_with("templates/") ? path : std::string_view();
}

class Flattener {
 public:
  explicit Flattener(std::string_view head) : head_(head) {}

  Status add_file(std::string_view path) {
    if (path == kBackwardHeadPath || path == kAppendHeadPath) path = kHeadPath;
    if (!seen_.insert(path).second) return ok_status();
    const std::optional<std::string_view> text = find_template(path);
    if (!text) return template_error(fmt::format("template {} does not exist", path));
    return add_text(path, path == kHeadPath ? head_ : *text);
  }

  std::string take() { return std::move(out_); }

 private:
  static Error template_error(std::string message) {
    return Error{.kind = ErrorKind::kFailed, .id = "emit-template", .message = std::move(message)};
  }

  Status add_text(std::string_view path, std::string_view text) {
    std::string body;
    bool any = false, has_code = false;
    while (!text.empty()) {
      const auto end = std::min(text.find('\n'), text.size() - 1) + 1;
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end);
      if (line.starts_with("#pragma once")) continue;
      if (line.starts_with(kInclude)) {
        const std::string_view include = include_path(line);
        if (include.empty()) {
          return template_error(fmt::format("{} includes something outside templates/", path));
        }
        if (has_code) {  // it may be there for what is included
          add_section(path, body);
          body.clear();
          any = has_code = false;
        }
        ATT_CHECK(add_file(include));
        continue;
      }
      const bool blank = line == "\n";
      if (blank && !any) continue;
      any = true;
      has_code |= !blank && !line.starts_with("//");
      // NVRTC keeps each constant of a namespace as a variable, and without linkage it bears the
      // name of the file, which is as long as the kernel's: a seventh of the cubin.
      if (line.starts_with("constexpr ")) body += "inline ";
      body += line;
    }
    if (any) add_section(path, body);
    return ok_status();
  }

  void add_section(std::string_view path, std::string_view body) {
    out_ += fmt::format("\n// ---- {}\n{}", path, body);
  }

  std::string_view head_;
  std::set<std::string_view> seen_;
  std::string out_;
};

}  // namespace

Result<std::string> flatten_template(std::string_view path, std::string_view head) {
  Flattener flattener(head);
  ATT_CHECK(flattener.add_file(path));
  return flattener.take();
}

}  // namespace attune
