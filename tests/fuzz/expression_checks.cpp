#include "tests/fuzz/expression_checks.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/intervals.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

constexpr ProblemShape kShape{1, 2, 1, 5, 9};
constexpr std::int64_t kMostElements = 4096;

// Small values that repeat, so that comparisons go both ways; nothing when a tensor is too large to
// fill each time.
std::optional<std::vector<expr::TensorValues>> sample_tensors(
    const expr::Environment& environment) {
  std::vector<expr::TensorValues> tensors;
  for (const expr::TensorDecl& declaration : environment.tensors) {
    expr::TensorValues tensor;
    std::int64_t count = 1;
    for (const expr::DimSize& dim : declaration.dims) {
      tensor.sizes.push_back(dim_size(dim, kShape));
      count *= tensor.sizes.back();
      if (count > kMostElements) return std::nullopt;
    }
    const int most = declaration.type == expr::TensorType::kBool ? 2 : 5;
    for (std::int64_t i = 0; i < count; ++i)
      tensor.values.push_back(static_cast<double>(i * 7 / 3 % most));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string check_box(const expr::Expr& mask, const expr::TileBox& box, expr::Point point) {
  const expr::TileClass tile = expr::classify(mask, box);
  const expr::KvBounds bounds = expr::kv_bounds(mask, box);
  for (point.q_idx = box.q0; point.q_idx < box.q1; ++point.q_idx) {
    for (point.kv_idx = 0; point.kv_idx < point.kv_len; ++point.kv_idx) {
      const bool live = expr::evaluate(mask, point) != 0;
      if (live && (point.kv_idx < bounds.begin || point.kv_idx >= bounds.end))
        return "a live key outside of kv_bounds";
      if (point.kv_idx < box.k0 || point.kv_idx >= box.k1) continue;
      if (live && tile == expr::TileClass::kSkip) return "a live element of a skipped tile";
      if (!live && tile == expr::TileClass::kFull) return "a dead element of a full tile";
    }
  }
  return {};
}

}  // namespace

std::string check_error(const Error& error, std::string_view bytes, std::string_view file) {
  if (error.id.empty() || error.message.empty()) return "an error without id or message";
  if (error.kind != ErrorKind::kBadInput && error.kind != ErrorKind::kUnsupported)
    return "not the input's fault";
  if (error.file != file) return "an error without its file: " + error.id;
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

std::string check_round_trip(const expr::Expr& expression, const expr::Environment& environment,
                             expr::Role role) {
  if (!expression) return {};
  const std::string text = expr::print(expression, environment);
  const auto again = expr::parse(text, environment, role, {});
  if (!again.ok()) return "canonical text does not parse: " + text;
  if (expr::print(*again, environment) != text)
    return "canonical text is not a fixed point: " + text;
  return {};
}

std::string check_meaning(const expr::Expr& expression, const expr::Environment& environment,
                          expr::Role role) {
  if (!expression) return {};
  const auto tensors = sample_tensors(environment);
  if (!tensors) return {};
  std::vector<double> scalars;
  for (const expr::ScalarDecl& scalar : environment.scalars)
    scalars.push_back(scalar.is_constant ? scalar.value : 3);
  const expr::Point point{.score = 0.75,
                          .h = 1,
                          .q_idx = 4,
                          .kv_idx = 6,
                          .q_len = kShape.q_len,
                          .kv_len = kShape.kv_len,
                          .scalars = scalars,
                          .tensors = *tensors};
  if (role != expr::Role::kMask) {
    expr::evaluate(expression, point);
    return {};
  }
  for (const auto& [q0, q1, k0, k1] : {std::array{0, 5, 0, 9}, std::array{0, 2, 0, 4},
                                       std::array{2, 5, 4, 8}, std::array{4, 5, 8, 9}}) {
    const expr::TileBox box{.q0 = q0,
                            .q1 = q1,
                            .k0 = k0,
                            .k1 = k1,
                            .h = 1,
                            .q_len = kShape.q_len,
                            .kv_len = kShape.kv_len,
                            .scalars = scalars,
                            .tensor_range = {}};
    if (std::string problem = check_box(expression, box, point); !problem.empty())
      return problem + ": " + expr::print(expression, environment);
  }
  return {};
}

}  // namespace attune
