// libFuzzer's entry for expressions: the first byte picks the role, the rest is the text, over a
// fixed set of scalars and tensors.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fuzz/expression_checks.hpp"

namespace attune {
namespace {

constexpr std::string_view kFile = "fuzz.yaml";

const expr::Environment& environment() {
  using expr::Dim;
  static const expr::Environment names{
      .scalars = {{.name = "window", .type = expr::Type::kInt32, .is_constant = true, .value = 3},
                  {.name = "count", .type = expr::Type::kInt32},
                  {.name = "cap", .type = expr::Type::kFloat32},
                  {.name = "flag", .type = expr::Type::kBool}},
      .tensors = {
          {.name = "doc",
           .type = expr::TensorType::kInt32,
           .dims = {{.dim = Dim::kBatch}, {.dim = Dim::kKvLen}}},
          {.name = "slope", .type = expr::TensorType::kFloat32, .dims = {{.dim = Dim::kHeads}}},
          {.name = "table",
           .type = expr::TensorType::kBool,
           .dims = {{.dim = Dim::kQLen}, {.dim = Dim::kNumber, .number = 7}}},
          {.name = "gain", .type = expr::TensorType::kFloat16, .dims = {}}}};
  return names;
}

std::string check_expression_bytes(std::string_view bytes) {
  if (bytes.empty()) return {};
  constexpr expr::Role kRoles[] = {expr::Role::kMask, expr::Role::kScore, expr::Role::kSink};
  const expr::Role role = kRoles[static_cast<unsigned char>(bytes.front()) % std::size(kRoles)];
  bytes.remove_prefix(1);
  const auto parsed =
      expr::parse(bytes, environment(), role, {.file = std::string(kFile), .positions = {}});
  if (!parsed.ok()) return check_error(parsed.error(), bytes, kFile);
  std::string problem = check_round_trip(*parsed, environment(), role);
  return problem.empty() ? check_meaning(*parsed, environment(), role) : problem;
}

}  // namespace
}  // namespace attune

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string problem =
      attune::check_expression_bytes({reinterpret_cast<const char*>(data), size});
  if (!problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    std::abort();
  }
  return 0;
}
