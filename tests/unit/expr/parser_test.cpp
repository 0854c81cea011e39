#include "generator/expr/build.hpp"
#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

struct Row {
  std::string_view text, tree;
};

// Canonical text shows structure, inserted conversions and folding at once.
TEST(Parser, CanonicalText) {
  constexpr Row kRows[] = {
      // Precedence and association.
      {"1 + 2 * q_idx < kv_idx", "1 + 2 * q_idx < kv_idx"},
      {"(1 + q_idx) * 2 < kv_idx", "(1 + q_idx) * 2 < kv_idx"},
      {"q_idx - (kv_idx - 1) < 3", "q_idx - (kv_idx - 1) < 3"},
      {"q_idx - kv_idx - 1 < 3", "q_idx - kv_idx - 1 < 3"},
      {"q_idx // 2 % 3 == 0", "q_idx // 2 % 3 == 0"},
      {"q_idx // (2 * h) == 0", "q_idx // (2 * h) == 0"},
      {"-q_idx * 2 < 0", "-q_idx * 2 < 0"},
      {"-(q_idx * 2) < 0", "-(q_idx * 2) < 0"},
      {"h < 1 or h < 2 and h < 3", "h < 1 or h < 2 and h < 3"},
      {"(h < 1 or h < 2) and h < 3", "(h < 1 or h < 2) and h < 3"},
      {"not h < 1 and h < 2", "not h < 1 and h < 2"},
      {"not (h < 1 and h < 2)", "not (h < 1 and h < 2)"},
      {"h < 1 if b < 1 else h < 2", "h < 1 if b < 1 else h < 2"},
      {"(h if b < 1 else 2) < 3", "(h if b < 1 else 2) < 3"},
      {"h if b < 1 else b if h < 1 else 2", "float(h if b < 1 else b if h < 1 else 2)"},
      // Chains.
      {"0 <= q_idx < kv_idx", "0 <= q_idx and q_idx < kv_idx"},
      {"0 <= q_idx < kv_idx == 4", "0 <= q_idx and q_idx < kv_idx and kv_idx == 4"},
      // Promotion; a mask over floats; division is true division.
      {"score + q_idx", "score + float(q_idx)"},
      {"score / 2", "score / 2.0"},
      {"q_idx / 2", "float(q_idx) / 2.0"},
      {"q_idx < 1.5", "float(q_idx) < 1.5"},
      {"min(score, 3)", "min(score, 3.0)"},
      {"min(q_idx, 3) < 1", "min(q_idx, 3) < 1"},
      {"exp(q_idx)", "exp(float(q_idx))"},
      {"floor(score) + 1", "float(floor(score) + 1)"},
      {"floor(q_idx) == 1", "q_idx == 1"},
      // Folding.
      {"1 + 2 * 3 + q_idx < 0", "7 + q_idx < 0"},
      {"q_idx < window * 2", "q_idx < 8"},
      {"score * (1 / 4)", "score * 0.25"},
      {"score * 0.1", "score * 0.1"},
      {"-7 // 2 == q_idx", "-4 == q_idx"},
      {"-7 % 3 == q_idx", "2 == q_idx"},
      {"2147483647 + 1 == q_idx", "(-2147483647 - 1) == q_idx"},
      {"q_idx == -2147483648", "q_idx == (-2147483647 - 1)"},
      {"true and h < 1", "h < 1"},
      {"h < 1 or true", "true"},
      {"not not h < 1", "h < 1"},
      {"1 < 2", "true"},
      {"score if window > 3 else 0", "score"},
      {"score + 0", "score + 0.0"},
      {"score * 1", "score"},
      {"q_idx * 0 + kv_idx + 0 < 3", "kv_idx < 3"},
      {"q_idx % 1 < 3", "true"},
      {"exp(1000) * score", "exp(1000.0) * score"},
      {"sqrt(2)", "1.4142135"},
      {"pow(score, 3)", "score * score * score"},
      {"pow(score, -2)", "1.0 / (score * score)"},
      {"pow(score, 6)", "score * score * score * (score * score * score)"},
      {"pow(score, 1) + pow(score, 0)", "score + 1.0"},
      {"pow(score, 0.5)", "sqrt(score)"},
      {"pow(2, q_idx)", "exp2(float(q_idx))"},
      {"pow(q_idx, 1.5)", "pow(float(q_idx), 1.5)"},
      {"pow(score, 9)", "pow(score, 9.0)"},
      {"pow(3, score)", "pow(3.0, score)"},
      {"pow(3, 4) + score", "81.0 + score"},
      {"sin(0) + cos(score) + erf(softplus(score))", "0.0 + cos(score) + erf(softplus(score))"},
      {"tan(score)", "sin(score) / cos(score)"},
      {"silu(q_idx)", "float(q_idx) * sigmoid(float(q_idx))"},
      {"gelu(score)", "0.5 * score * (1.0 + erf(score * 0.70710677))"},
      // Bits: Python's precedence; a constant's are arithmetic.
      {"q_idx + 1 << h & 3 ^ b | 1 == 0", "(q_idx + 1 << h) % 4 ^ b | 1 == 0"},
      {"(q_idx & kv_idx) == 0", "q_idx & kv_idx == 0"},
      {"(q_idx | h) & b == 1", "(q_idx | h) & b == 1"},
      {"q_idx >> h - 1 < 3", "q_idx >> h - 1 < 3"},
      {"q_idx << 3 < kv_idx >> 3", "q_idx * 8 < kv_idx // 8"},
      {"q_idx & 7 == kv_idx & -8", "q_idx % 8 == kv_idx // 8 * 8"},
      {"q_idx ^ -1 == (5 & 3) << (2 | 1)", "-1 - q_idx == 8"},
      {"q_idx >> 31 == q_idx & q_idx", "q_idx >> 31 == q_idx"},
      {"q_idx & 0 | h ^ h | b | 0 == 1", "b == 1"},
      // Equality of bools.
      {"causal_top_left == (h < 1)", "(kv_idx <= q_idx) == (h < 1)"},
      {"(h < 1) != true", "not h < 1"},
      {"(h < 1) == (h < 1)", "true"},
      // Local definitions are what they stand for.
      {"let d = q_idx - kv_idx in d < 4 and -d < 4",
       "q_idx - kv_idx < 4 and -(q_idx - kv_idx) < 4"},
      {"let near = causal in let n = 2 * window in near or kv_idx < n",
       "kv_idx <= q_idx + (kv_len - q_len) or kv_idx < 8"},
      {"let a = let b1 = h + 1 in b1 * b1 in let b1 = 3 in a < b1", "(h + 1) * (h + 1) < 3"},
      {"1 + (let s = score * 2 in s * s)", "1.0 + score * 2.0 * (score * 2.0)"},
      {"score if h < 1 else let t = tanh(score) in t + t",
       "score if h < 1 else tanh(score) + tanh(score)"},
      {"let n = 3 in sliding_window(n) and dilated(n + 1)",
       "kv_idx <= q_idx + (kv_len - q_len) and q_idx + (kv_len - q_len) - kv_idx < 3 and "
       "(kv_idx <= q_idx + (kv_len - q_len) and (q_idx + (kv_len - q_len) - kv_idx) % 4 == 0)"},
      // Reductions are written out.
      {"any(i, 3, table[h, i])", "table[h, 0] or table[h, 1] or table[h, 2]"},
      {"all(i, 2, table[h, i] == table[i, h])",
       "table[h, 0] == table[0, h] and table[h, 1] == table[1, h]"},
      {"sum(i, 3, (i + 1) * slope[i])", "slope[0] + 2.0 * slope[1] + 3.0 * slope[2]"},
      {"dot(i, window - 2, slope[i], slope[i + h])",
       "slope[0] * slope[h] + slope[1] * slope[1 + h]"},
      {"sum(i, 3, i) + score", "3.0 + score"},
      {"any(i, 2, let n = i + 2 in any(j, n - 1, table[i, j]))",
       "table[0, 0] or (table[1, 0] or table[1, 1])"},
      {"score + sum(i, 1, score)", "score + score"},
      // Tensors and scalars.
      {"doc[b, q_idx] == doc[b, kv_idx]", "doc[b, q_idx] == doc[b, kv_idx]"},
      {"cap * tanh(score / cap)", "cap * tanh(score / cap)"},
      {"score + slope[h] * (kv_idx - q_idx)", "score + slope[h] * float(kv_idx - q_idx)"},
      {"table[q_idx // 8, kv_idx // 8]", "table[q_idx // 8, kv_idx // 8]"},
      {"limit < 3", "limit < 3"},
      {"gain * score", "gain * score"},
      {"slope[doc[b, kv_idx]] + score", "slope[doc[b, kv_idx]] + score"},
      // Named masks are their definitions.
      {"causal", "kv_idx <= q_idx + (kv_len - q_len)"},
      {"causal()", "kv_idx <= q_idx + (kv_len - q_len)"},
      {"causal_top_left", "kv_idx <= q_idx"},
      {"sliding_window(window)",
       "kv_idx <= q_idx + (kv_len - q_len) and q_idx + (kv_len - q_len) - kv_idx < 4"},
      {"document(doc)", "doc[b, q_idx + (kv_len - q_len)] == doc[b, kv_idx]"},
      {"1 if causal else 0.5", "1.0 if kv_idx <= q_idx + (kv_len - q_len) else 0.5"},
  };
  for (const Row& row : kRows) EXPECT_EQ(printed(row.text), row.tree) << row.text;
}

TEST(Parser, CanonicalTextReadsBack) {
  constexpr std::string_view kTexts[] = {"score * 0.1 + 1e-30 - 3e38",
                                         "not (h < 1 or b < 2) and (q_idx if h < 1 else b) < 3",
                                         "-(-(q_idx + 1) * -2) // -3 == -2147483648",
                                         "sink_window(8, 2)",
                                         "natten_2d(16, 5)",
                                         "window_2d(16, 5)",
                                         "global_window(3, 2)",
                                         "big_bird(3, 1, table, 8)",
                                         "abs(q_idx - kv_idx) % 3 != 0",
                                         "(h < 1 if b < 1 else h < 2) and true",
                                         "-score * -0.5"};
  for (std::string_view text : kTexts) {
    const Expr tree = parsed(text);
    ASSERT_TRUE(tree);
    const std::string canonical = print(tree, test_environment());
    const Expr again = parsed(canonical);
    ASSERT_TRUE(again) << canonical;
    EXPECT_TRUE(equal(tree, again)) << canonical;
    EXPECT_EQ(print(again, test_environment()), canonical);
  }
}

TEST(Parser, LookUpsAreClampedUnlessProven) {
  struct Proof {
    std::string_view text;
    std::uint32_t clamped;
  };
  constexpr Proof kRows[] = {
      {"doc[b, kv_idx] == 1", 0},
      {"doc[b, q_idx] == 1", 2},  // q_idx may exceed kv_len
      {"doc[b, min(q_idx, kv_idx)] == 1", 0},
      {"doc[b, kv_idx - 1] == 1", 2},
      {"doc[b, max(kv_idx - 1, 0)] == 1", 0},
      {"doc[b, q_idx % kv_len] == 1", 0},
      {"doc[h, kv_idx // 2] == 1", 1},
      {"doc[b, 0 if causal else kv_idx] == 1", 0},
      {"slope[h] < 1", 0},
      {"slope[h_kv] < 1", 0},
      {"slope[h + 1] < 1", 1},
      {"table[q_idx % 4, kv_idx // 2]", 2},
      {"table[3, h]", 2},
      {"doc[b, kv_idx & 12] == 1", 0},
      {"doc[b, kv_idx >> (h & 3)] == 1", 0},
      {"doc[b, kv_idx | 1] == 1", 2},
      {"table[h & 3, (b | 5) & 2]", 0},
  };
  for (const Proof& row : kRows) {
    Expr node = parsed(row.text);
    ASSERT_TRUE(node);
    while (node->op != Op::kLoad) node = node->args[0];
    EXPECT_EQ(node->clamped, row.clamped) << row.text;
  }
}

TEST(Parser, NodesKnowTheirPlaceInTheFile) {
  const SourceOrigin origin = {.file = "a.yaml",
                               .line = 10,
                               .column = 7,
                               .continuation_column = 3,
                               .whole_file = {},
                               .positions = {}};
  const auto tree = parse("causal and\n  q_idx < 3", test_environment(), Role::kMask, origin);
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ((*tree)->args[0]->span.line, 10);
  EXPECT_EQ((*tree)->args[0]->span.column, 7);
  EXPECT_EQ((*tree)->args[0]->span.length, 6);
  EXPECT_EQ((*tree)->args[1]->span.line, 11);
  EXPECT_EQ((*tree)->args[1]->span.column, 5);
  EXPECT_EQ((*tree)->args[1]->span.length, 9);
}

TEST(Parser, PositionsOutrankColumns) {
  // `h  <1` as a YAML scalar might have been written over two lines: h\n  <1.
  const SourceSpan positions[] = {{5, 9, 1}, {5, 10, 1}, {6, 3, 1}, {6, 4, 1}, {6, 5, 1}};
  const SourceOrigin origin = {.file = "a.yaml",
                               .line = 1,
                               .column = 1,
                               .continuation_column = 1,
                               .whole_file = {},
                               .positions = positions};
  const auto tree = parse("h <x", test_environment(), Role::kMask, origin);
  ASSERT_FALSE(tree.ok());
  EXPECT_EQ(tree.error().span.line, 6);
  EXPECT_EQ(tree.error().span.column, 4);
  EXPECT_EQ(tree.error().span.length, 1);
}

TEST(Parser, ReservedNames) {
  const auto names = reserved_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (std::string_view name :
       {"let", "in", "q_idx", "and", "def", "tanh", "causal", "true", "float"})
    EXPECT_TRUE(std::binary_search(names.begin(), names.end(), name)) << name;
  for (std::string_view name : {"doc", "window", "q", "kv", "Causal"})
    EXPECT_FALSE(std::binary_search(names.begin(), names.end(), name)) << name;
}

}  // namespace
}  // namespace attune::expr
