// What is said of an index against brute force.
#include "generator/expr/look_up_pattern.hpp"

#include <gtest/gtest.h>

#include "generator/expr/build.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

// The tree with 0 for q_idx and kv_idx - q_idx for kv_idx.
Expr of_distance(const Expr& e) {
  if (e->op == Op::kVariable && e->variable == Variable::kQIdx) return make_int(0);
  if (e->op == Op::kVariable && e->variable == Variable::kKvIdx)
    return make_binary(Op::kSubtract, e, make_variable(Variable::kQIdx));
  auto node = std::make_shared<Node>(*e);
  for (Expr& arg : node->args) arg = of_distance(arg);
  return node;
}

LookUpPattern pattern_of_index(const Expr& index) {
  return look_up_pattern(make_load(2, Type::kFloat32, {index}, 1), random_environment());
}

void check_sound(const Expr& index, const World& world) {
  RC_LOG() << print(index, random_environment()) << '\n';
  const LookUpPattern pattern = pattern_of_index(index);
  const auto at = [&](int q, int k) { return evaluate(index, world.point(q, k)); };
  for (int q = 0; q + 1 < world.q_len; ++q) {
    for (int k = 0; k + 1 < world.kv_len; ++k) {
      if (!pattern.varies_by_query) RC_ASSERT(at(q, k) == at(q + 1, k));
      if (!pattern.varies_by_key) RC_ASSERT(at(q, k) == at(q, k + 1));
      if (pattern.is_distance) RC_ASSERT(at(q, k) == at(q + 1, k + 1));
    }
  }
}

TEST(LookUpPattern, IsSound) {
  int distances = 0, of_distances = 0;
  EXPECT_TRUE(rc::check([&] {
    const Tape expression = *any_tape(), data = *any_tape();
    const World world = random_world(data, 16);
    const Expr index =
        rebuilt(RandomExpression(expression, {.floats = false}).integer(1 + data[0] % 5));
    check_sound(index, world);
    const Expr other = rebuilt(of_distance(index));
    check_sound(other, world);
    const LookUpPattern pattern = pattern_of_index(other);
    of_distances += pattern.varies_by_query && pattern.varies_by_key;
    distances += pattern.is_distance;
  }));
  EXPECT_GT(distances, 20);
  EXPECT_GT(distances, of_distances / 2);
}

TEST(LookUpPattern, OfBiasesInUse) {
  const Environment environment = {
      .scalars = {},
      .tensors = {{.name = "slope", .dims = {{.dim = Dim::kHeads}}},
                  {.name = "t", .dims = {{.dim = Dim::kHeads}, {.number = 32}}},
                  {.name = "dense",
                   .dims = {{.dim = Dim::kHeads}, {.dim = Dim::kQLen}, {.dim = Dim::kKvLen}}},
                  {.name = "grid", .dims = {{.number = 8}, {.number = 4}}}}};
  struct Row {
    std::string_view look_up;
    bool by_query, by_key, distance;
    int bins;
  };
  constexpr Row kRows[] = {
      {"slope[h]", false, false, false, 1},
      {"t[h, 3]", false, false, false, 1},
      {"t[h, max(0, min(31, kv_idx - q_idx + 16))]", true, true, true, 32},
      {"t[h, min((q_idx + kv_len - q_len - kv_idx) // 64, 31)]", true, true, true, 32},
      {"t[h, (16 if kv_idx > q_idx else 0) + min(15, abs(kv_idx - q_idx))]", true, true, true, 32},
      {"t[h, floor(log2(abs(kv_idx - q_idx) + 1))]", true, true, true, 32},
      {"t[h, kv_idx // 64 - q_idx // 64]", true, true, false, 32},
      {"t[h, q_idx % 32]", true, false, false, 32},
      {"dense[h, q_idx, kv_idx]", true, true, false, 0},
      {"dense[h, 0, kv_idx]", false, true, false, 0},
      {"grid[kv_idx % 8, h % 4]", false, true, false, 32},
      {"grid[h % 8, h % 4]", false, false, false, 1},
  };
  for (const Row& row : kRows) {
    const auto look_up = parse(row.look_up, environment, Role::kScore, {});
    ASSERT_TRUE(look_up.ok()) << render(look_up.error());
    const LookUpPattern pattern = look_up_pattern(*look_up, environment);
    EXPECT_EQ(pattern.varies_by_query, row.by_query) << row.look_up;
    EXPECT_EQ(pattern.varies_by_key, row.by_key) << row.look_up;
    EXPECT_EQ(pattern.is_distance, row.distance) << row.look_up;
    EXPECT_EQ(pattern.bins, row.bins) << row.look_up;
  }
}

TEST(LookUpPattern, AnElementOfOnePairIsLookedUpByEveryVariable) {
  const auto dims = [](std::vector<Dim> of) {
    std::vector<DimSize> sizes;
    for (const Dim dim : of) sizes.push_back({.dim = dim});
    return sizes;
  };
  const Environment environment = {
      .scalars = {},
      .tensors = {
          {.name = "own", .dims = dims({Dim::kBatch, Dim::kHeads, Dim::kQLen, Dim::kKvLen})},
          {.name = "of_heads", .dims = dims({Dim::kHeads, Dim::kQLen, Dim::kKvLen})},
          {.name = "of_kv_heads",
           .dims = dims({Dim::kBatch, Dim::kKvHeads, Dim::kQLen, Dim::kKvLen})}}};
  const std::pair<std::string_view, bool> rows[] = {
      {"own[b, h, q_idx, kv_idx]", true},
      {"own[b, h, q_idx, kv_idx // 2]", false},
      {"own[b, h, kv_idx, q_idx]", false},  // each is clamped into the other's dim
      {"own[b, 0, q_idx, kv_idx]", false},
      {"of_heads[h, q_idx, kv_idx]", false},
      {"of_kv_heads[b, h_kv, q_idx, kv_idx]", false},
  };
  for (const auto& [text, is_exclusive] : rows) {
    const auto look_up = parse(text, environment, Role::kScore, {});
    ASSERT_TRUE(look_up.ok()) << render(look_up.error());
    EXPECT_EQ(look_up_pattern(*look_up, environment).is_exclusive(), is_exclusive) << text;
  }
}

}  // namespace
}  // namespace attune::expr
