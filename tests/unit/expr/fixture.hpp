// What the expression tests share: an environment, and shorthands.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/parser.hpp"

namespace attune::expr {

inline const Environment& test_environment() {
  static const Environment environment = {
      .scalars = {{.name = "window", .type = Type::kInt32, .is_constant = true, .value = 4},
                  {.name = "cap", .type = Type::kFloat32},
                  {.name = "limit", .type = Type::kInt32}},
      .tensors = {
          {.name = "doc",
           .type = TensorType::kInt32,
           .dims = {{.dim = Dim::kBatch}, {.dim = Dim::kKvLen}}},
          {.name = "slope", .type = TensorType::kFloat32, .dims = {{.dim = Dim::kHeads}}},
          {.name = "table",
           .type = TensorType::kBool,
           .dims = {{.dim = Dim::kNumber, .number = 4}, {.dim = Dim::kNumber, .number = 4}}}}};
  return environment;
}

inline Result<Expr> try_parse(std::string_view text, Role role = Role::kScore) {
  return parse(text, test_environment(), role, {});
}

// A mask or a score, whichever it is. Fails the test when it is neither.
inline Expr parsed(std::string_view text) {
  auto mask = try_parse(text, Role::kMask);
  if (mask.ok()) return *mask;
  auto score = try_parse(text, Role::kScore);
  EXPECT_TRUE(score.ok()) << render(mask.error()) << render(score.error());
  return score.ok() ? *score : nullptr;
}

inline std::string printed(std::string_view text) {
  const Expr tree = parsed(text);
  return tree ? print(tree, test_environment()) : "";
}

}  // namespace attune::expr
