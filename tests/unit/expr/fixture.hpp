// What the expression tests share: an environment, and shorthands.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

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
           .dims = {{.dim = Dim::kNumber, .number = 4}, {.dim = Dim::kNumber, .number = 4}}},
          {.name = "gain", .type = TensorType::kFloat32, .dims = {}}}};
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

// b 1, h 2, h_kv 1, q_idx 3, kv_idx 5, q_len 6, kv_len 8, cap 2, limit 7;
// doc rows {0 0 0 0 1 1 1 1} and {5 5 6 6 6 7 7 7}, slope {1 0.5 0.25 0.125}, table the identity,
// gain 3.
inline double value_at_score(const Expr& tree, double score) {
  const double scalars[] = {4, 2, 7};
  std::vector<TensorValues> tensors(4);
  tensors[0] = {{2, 8}, {0, 0, 0, 0, 1, 1, 1, 1, 5, 5, 6, 6, 6, 7, 7, 7}};
  tensors[1] = {{4}, {1, 0.5, 0.25, 0.125}};
  tensors[2] = {{4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}};
  tensors[3] = {{}, {3}};
  Point point;
  point.score = score;
  point.b = 1;
  point.h = 2;
  point.h_kv = 1;
  point.q_idx = 3;
  point.kv_idx = 5;
  point.q_len = 6;
  point.kv_len = 8;
  point.scalars = scalars;
  point.tensors = tensors;
  return evaluate(tree, point);
}

inline std::string printed(std::string_view text) {
  const Expr tree = parsed(text);
  return tree ? print(tree, test_environment()) : "";
}

}  // namespace attune::expr
