#include "tests/fuzz/spec_target.hpp"

#include <algorithm>
#include <cmath>

#include "generator/expr/parser.hpp"
#include "generator/spec/spec.hpp"

namespace attune {
namespace {

std::string check_error(const Error& error, std::string_view bytes) {
  if (error.id.empty() || error.message.empty()) return "an error without id or message";
  if (error.kind != ErrorKind::kBadInput && error.kind != ErrorKind::kUnsupported)
    return "not the input's fault";
  if (error.file != "fuzz.yaml") return "an error without its file: " + error.id;
  const auto lines = 1 + std::ranges::count(bytes, '\n');
  if (error.span.line < 0 || error.span.line > lines)
    return "a line outside of the file: " + error.id;
  if (error.span.line > 0 && (error.span.column < 1 || error.span.length < 1))
    return "a column outside of the line: " + error.id;
  // Columns reach one character behind the line, where its end is what is wrong.
  std::size_t begin = 0;
  for (int line = 1; line < error.span.line; ++line) begin = bytes.find('\n', begin) + 1;
  const std::size_t length = std::min(bytes.find('\n', begin), bytes.size()) - begin;
  if (error.span.line > 0 && static_cast<std::size_t>(error.span.column) > length + 1)
    return "a column outside of the line: " + error.id;
  if (render(error).size() > 4096) return "a message without bounds: " + error.id;
  return {};
}

std::string check_expression(const expr::Expr& expression, const expr::Environment& environment,
                             expr::Role role) {
  if (!expression) return {};
  const std::string text = expr::print(expression, environment);
  const auto again = expr::parse(text, environment, role, {});
  if (!again.ok()) return "canonical text does not parse: " + text;
  if (expr::print(*again, environment) != text)
    return "canonical text is not a fixed point: " + text;
  return {};
}

std::string check_spec(const AttentionSpec& spec) {
  if (spec.name.empty() || spec.passes.empty()) return "a spec without name or passes";
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 8 || dim > 256 || dim % 8 != 0) return "a head dim out of range";
  }
  if (!spec.softmax_scale.at_launch &&
      !(spec.softmax_scale.value > 0 && std::isfinite(spec.softmax_scale.value)))
    return "a bad scale";
  if (!(spec.dropout.value >= 0 && spec.dropout.value < 1)) return "a bad dropout";
  for (const ProblemShape& shape : spec.tune_shapes) {
    const auto again = parse_shape(to_string(shape));
    if (!again.ok() || *again != shape) return "a shape that does not round-trip";
  }
  for (auto [expression, role] :
       {std::pair{spec.mask, expr::Role::kMask}, std::pair{spec.score, expr::Role::kScore},
        std::pair{spec.sink, expr::Role::kSink}}) {
    if (std::string problem = check_expression(expression, spec.environment, role);
        !problem.empty())
      return problem;
  }
  if (spec_hash(spec).size() != 32) return "a hash of the wrong length";
  return {};
}

}  // namespace

std::string check_spec_bytes(std::string_view bytes) {
  const auto spec = parse_spec(bytes, "fuzz.yaml");
  return spec.ok() ? check_spec(*spec) : check_error(spec.error(), bytes);
}

}  // namespace attune
