#include "generator/expr/evaluator.hpp"

#include <cmath>

#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

double value_of(std::string_view text) {
  const Expr tree = parsed(text);
  return tree ? value_at_score(tree, 0.5) : std::nan("");
}

TEST(Evaluator, Values) {
  struct Row {
    std::string_view text;
    double value;
  };
  const Row rows[] = {
      {"b + 10 * h + 100 * h_kv", 121},
      {"q_idx + 10 * kv_idx + 100 * q_len + 1000 * kv_len", 8653},
      {"score * cap + limit", 8},
      {"(q_idx - kv_idx) // 4", -1},
      {"(q_idx - kv_idx) % 4", 2},
      {"q_idx // (h - 4)", -2},
      {"q_idx % (h - 4)", -1},
      {"q_idx // (h - 2)", 0},
      {"q_idx % (h - 2)", 0},
      {"(limit - 7 - 2147483647 - 1) // (h - 3)", -2147483648.0},
      {"limit - 7 + 2147483647 + h", -2147483647.0},
      {"65536 * (limit - 7 + 65536)", 0},
      {"abs(limit - 7 - 2147483647 - 1)", -2147483648.0},
      {"(q_idx & kv_idx) + 10 * (q_idx | kv_idx) + 100 * (q_idx ^ kv_idx)", 671},
      {"(q_idx - 5 & kv_idx) + 10 * (q_idx - 5 | kv_idx) + 100 * (q_idx - 5 ^ kv_idx)", -506},
      {"q_idx << h", 12},
      {"q_idx << limit + 25", 0},
      {"q_idx << h - 3", 0},
      {"h - 1 << limit + 24", -2147483648.0},
      {"kv_idx - 50 >> h", -12},
      {"kv_idx - 50 >> h - 3", -1},
      {"kv_idx >> 25 + limit", 0},
      {"kv_idx << 30", 1073741824},
      {"kv_idx - 50 >> 31", -1},
      {"1 if (q_idx < 4) == (h < 1) else 0", 0},
      {"1 if (q_idx < 4) != (h < 1) else 0", 1},
      {"q_idx / kv_idx", 0.6},
      {"min(q_idx, kv_idx) + 10 * max(q_idx, kv_idx)", 53},
      {"min(score, 0.25)", 0.25},
      {"abs(q_idx - kv_idx) + abs(score - 1)", 2.5},
      {"exp(score)", std::exp(0.5)},
      {"exp2(score) * log2(cap)", std::exp2(0.5)},
      {"log(cap) + sqrt(cap)", std::log(2.0) + std::sqrt(2.0)},
      {"tanh(score) + sigmoid(score)", std::tanh(0.5) + 1 / (1 + std::exp(-0.5))},
      {"sin(score) + cos(cap) + tan(cap)", std::sin(0.5) + std::cos(2.0) + std::tan(2.0)},
      {"erf(score) + softplus(score)", std::erf(0.5) + std::log1p(std::exp(0.5))},
      {"softplus(score - 800) + softplus(score + 800)", 800.5},
      {"pow(score, cap) + pow(-score, h + 1)", 0.25 - 0.125},
      {"pow(score - 0.5, 0 * cap)", 1},
      {"silu(score)", 0.5 / (1 + std::exp(-0.5))},
      {"floor(score - 1)", -1},
      {"floor(score * 1e20)", 2147483647},
      {"floor(score * -1e20)", -2147483648.0},
      {"floor(sqrt(score - 1))", 0},
      {"1 if q_idx < kv_idx else 2", 1},
      {"1 if q_idx > kv_idx else 2", 2},
      {"1 if q_idx == 3 and not kv_idx != 5 else 2", 1},
      {"1 if q_idx >= 3 >= 3 and kv_idx <= 5 else 2", 1},
      {"1 if h < 2 or h > 2 else 2", 2},
      {"doc[b, q_idx] + 10 * doc[b, kv_idx]", 76},
      {"doc[b - 1, kv_idx]", 1},
      {"doc[b, kv_idx - 100] + 10 * doc[b + 5, kv_idx + 100]", 75},
      {"slope[h]", 0.25},
      {"gain + score", 3.5},
      {"doc[b, doc[b, q_idx]]", 7},
      {"slope[doc[b - 1, kv_idx]]", 0.5},
      {"1 if table[h, q_idx // 2 + 1] else 0", 1},
      {"1 if causal else 0", 1},
      {"1 if causal_top_left else 0", 0},
  };
  for (const Row& row : rows) EXPECT_DOUBLE_EQ(value_of(row.text), row.value) << row.text;
}

}  // namespace
}  // namespace attune::expr
