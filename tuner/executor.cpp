#include "tuner/executor.hpp"

namespace attune {
namespace {
constexpr std::string_view kPrefix = "candidate-";
}

std::string rejection_reason(const Error& error) {
  return error.id.starts_with(kPrefix) ? error.id.substr(kPrefix.size()) : "";
}

Error candidate_error(const std::string& reason, const std::string& message,
                      const std::string& detail) {
  return {.id = std::string(kPrefix) + reason, .message = message, .detail = detail};
}

}  // namespace attune
