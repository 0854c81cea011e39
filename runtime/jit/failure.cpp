#include "runtime/jit/failure.hpp"

#include <fmt/format.h>

namespace attune {
namespace {

std::string numbered(std::string_view source) {
  std::string text;
  for (int line = 1; !source.empty(); ++line) {
    const std::size_t end = source.find('\n');
    text += fmt::format("{:>5} | {}\n", line, source.substr(0, end));
    source.remove_prefix(end == std::string_view::npos ? source.size() : end + 1);
  }
  return text;
}

}  // namespace

Error compile_failure(const CompileAttempt& attempt, std::string_view reason,
                      std::string_view log) {
  return {.kind = ErrorKind::kFailed,
          .id = "compile-failed",
          .message = fmt::format("{} could not compile the kernel: {}", attempt.compiler, reason),
          .detail = fmt::format("command: {}\nlog:\n{}\nsource:\n{}", attempt.command, log,
                                numbered(attempt.source))};
}

}  // namespace attune
