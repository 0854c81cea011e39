#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

struct Row {
  std::string_view text, id;
  int line, column, length;
  std::string_view hint = "";
};

void expect_errors(std::span<const Row> rows, Role role) {
  for (const Row& row : rows) {
    const auto tree = try_parse(row.text, role);
    ASSERT_FALSE(tree.ok()) << row.text;
    const Error& error = tree.error();
    EXPECT_EQ(error.kind, ErrorKind::kBadInput);
    EXPECT_EQ(error.id, row.id) << row.text << '\n' << render(error);
    EXPECT_EQ(error.span.line, row.line) << row.text;
    EXPECT_EQ(error.span.column, row.column) << row.text << '\n' << render(error);
    EXPECT_EQ(error.span.length, row.length) << row.text << '\n' << render(error);
    EXPECT_THAT(error.hint, testing::HasSubstr(row.hint)) << row.text;
  }
}

TEST(ExprErrors, Masks) {
  constexpr Row kRows[] = {
      {"", "expr-empty", 1, 1, 1},
      {"  # nothing", "expr-empty", 1, 12, 1},
      {"causl", "expr-unknown-name", 1, 1, 5, "did you mean `causal`?"},
      {"causal and qidx < 3", "expr-unknown-name", 1, 12, 4, "did you mean `q_idx`?"},
      {"causal and\n  qidx < 3", "expr-unknown-name", 2, 3, 4},
      {"dco[b, q_idx] == 1", "expr-unknown-name", 1, 1, 3, "did you mean `doc`?"},
      {"causal and zzzzzzzz", "expr-unknown-name", 1, 12, 8, "`scalars: {zzzzzzzz: 128}`"},
      {"h < heads", "expr-unknown-name", 1, 5, 5, "one of the `scalars`"},
      {"bits[q_idx] == 1", "expr-unknown-name", 1, 1, 4, "`tensors: {bits: {dtype"},
      {"scope[h] == 1", "expr-unknown-name", 1, 1, 5, "did you mean `slope`?"},
      {"document(dco)", "expr-unknown-name", 1, 10, 3, "did you mean `doc`?"},
      {"document(segments)", "expr-unknown-name", 1, 10, 8, "`tensors: {segments: {dtype"},
      {"cap[h] < 1", "expr-not-a-tensor", 1, 1, 3, "write `cap`"},
      {"any(causal)", "expr-wrong-argument-count", 1, 1, 11, "`any(i, n, x)`: i counts"},
      {"any(3, 4, causal)", "expr-needs-name", 1, 5, 1, "`any(i, n, x)`"},
      {"any(h, 4, causal)", "expr-name-taken", 1, 5, 1, "another name"},
      {"any(i, 0, causal)", "expr-bad-count", 1, 8, 1},
      {"any(i, 129, causal)", "expr-bad-count", 1, 8, 3},
      {"any(i, h, causal)", "expr-bad-count", 1, 8, 1},
      {"any(i, 4, i)", "expr-type-mismatch", 1, 11, 1, "compare"},
      {"any(i, 4, table[0, i + 1 + 3])", "expr-index-out-of-range", 1, 20, 9},
      {"any(i, 4, table[0, i]) and i < 2", "expr-unknown-name", 1, 28, 1},
      {"sum(i, 4, h < i) < 2", "expr-type-mismatch", 1, 11, 5, "if condition else"},
      {"sum < 3", "expr-unknown-name", 1, 1, 3, "with a counter"},
      {"mean(score) < 3", "expr-unknown-function", 1, 1, 4, "look it up in a tensor"},
      {"any(i, 100, any(j, 100, i + j < 0))", "expr-too-large", 1, 33, 1},
      {"float(\"-inf\") < 1", "expr-bad-character", 1, 7, 1, "no text"},
      {"sliding_windw(3)", "expr-unknown-function", 1, 1, 13, "did you mean `sliding_window`?"},
      {"q_idx <", "expr-unexpected-end", 1, 8, 1},
      {"q_idx < < 3", "expr-unexpected-token", 1, 9, 1},
      {"(q_idx < 3", "expr-unexpected-end", 1, 11, 1},
      {"q_idx < 3)", "expr-unexpected-token", 1, 10, 1},
      {"q_idx = 3", "expr-unexpected-token", 1, 7, 1, "`==`"},
      {"q_idx < 3 and", "expr-unexpected-end", 1, 14, 1},
      {"q_idx < 3 if h < 1", "expr-unexpected-end", 1, 19, 1},
      {"doc[b, q_idx == 1", "expr-unexpected-end", 1, 18, 1},
      {"a b", "expr-unexpected-token", 1, 3, 1},
      {"q_idx & 1", "expr-wrong-result-type", 1, 1, 9},
      {"h < 1 & q_idx < 4", "expr-needs-brackets", 1, 7, 1, "write `and` between booleans"},
      {"h < 1 | q_idx < 4", "expr-needs-brackets", 1, 7, 1, "write `or` between booleans"},
      {"h < 1 ^ q_idx < 4", "expr-needs-brackets", 1, 7, 1, "write `!=` between booleans"},
      {"causal | h < 1", "expr-type-mismatch", 1, 1, 6, "write `or` for booleans"},
      {"(h < 1) ^ causal", "expr-type-mismatch", 1, 2, 5, "write `!=` for booleans"},
      {"q_idx & 1.5 == 1", "expr-type-mismatch", 1, 9, 3, "floor"},
      {"causal << 1 == 1", "expr-type-mismatch", 1, 1, 6, "if condition else"},
      {"q_idx << 32 == 1", "expr-shift-out-of-range", 1, 10, 2, "0 to 31"},
      {"q_idx >> -1 == 1", "expr-shift-out-of-range", 1, 10, 2, "0 to 31"},
      {"q_idx >> (h + 32) == 1", "expr-shift-out-of-range", 1, 11, 6, "0 to 31"},
      {"~q_idx == 1", "expr-unknown-operator", 1, 1, 1, "-1 - x"},
      {"q_idx < 3 && h", "expr-unknown-operator", 1, 11, 2, "`and`"},
      {"q_idx $ 3", "expr-bad-character", 1, 7, 1},
      {"q_idx \u20ac 3", "expr-bad-character", 1, 7, 3},
      {"q_idx \u2264 3", "expr-unknown-operator", 1, 7, 3, "`<=`"},
      {"q_idx < 3x", "expr-bad-number", 1, 9, 2},
      {"q_idx < 2147483648", "expr-number-out-of-range", 1, 9, 10},
      {"q_idx", "expr-wrong-result-type", 1, 1, 5},
      {"q_idx + 1.5", "expr-wrong-result-type", 1, 1, 11},
      {"causal + 1 < 2", "expr-type-mismatch", 1, 1, 6},
      {"not q_idx", "expr-type-mismatch", 1, 5, 5},
      {"causal and q_idx", "expr-type-mismatch", 1, 12, 5},
      {"causal < true", "expr-type-mismatch", 1, 1, 6, "`==`"},
      {"causal == 1", "expr-type-mismatch", 1, 1, 6, "if condition else"},
      {"h < 1 == true", "expr-type-mismatch", 1, 10, 4},
      {"(1 if h else 2) < 1", "expr-type-mismatch", 1, 7, 1},
      {"(1 if h < 1 else causal) < 1", "expr-type-mismatch", 1, 18, 6},
      {"q_idx % 1.5 < 1", "expr-type-mismatch", 1, 9, 3, "floor"},
      {"1.5 // q_idx < 1", "expr-type-mismatch", 1, 1, 3},
      {"doc[b, 0.5] == 1", "expr-type-mismatch", 1, 8, 3, "floor"},
      {"sliding_window(1.5)", "expr-type-mismatch", 1, 16, 3, "sliding_window(n: int32)"},
      {"document(q_idx)", "expr-type-mismatch", 1, 10, 5, "document(doc: tensor)"},
      {"document(doc, doc)", "expr-wrong-argument-count", 1, 1, 18},
      {"sliding_window", "expr-wrong-argument-count", 1, 1, 14, "sliding_window(n: int32)"},
      {"min(1) < 2", "expr-wrong-argument-count", 1, 1, 6},
      {"abs < 2", "expr-function-without-arguments", 1, 1, 3},
      {"doc == 1", "expr-tensor-without-index", 1, 1, 3},
      {"gain[0] == 1", "expr-wrong-index-count", 1, 1, 7, "write `gain`"},
      {"doc(b, q_idx) == 1", "expr-not-a-function", 1, 1, 3, "doc[...]"},
      {"q_idx[0] == 1", "expr-not-a-tensor", 1, 1, 5},
      {"doc[b] == 1", "expr-wrong-index-count", 1, 1, 6},
      {"document(slope)", "expr-wrong-index-count", 1, 1, 15,
       "inside the definition of `document`"},
      {"let x = h in x", "expr-wrong-result-type", 1, 1, 14},
      {"let h = 1 in h < 2", "expr-name-taken", 1, 5, 1, "another name"},
      {"let cap = 1 in h < cap", "expr-name-taken", 1, 5, 3},
      {"let doc = 1 in h < doc", "expr-name-taken", 1, 5, 3},
      {"let causal = 1 in h < 2", "expr-name-taken", 1, 5, 6},
      {"let x = 1 in let x = 2 in h < x", "expr-name-taken", 1, 18, 1},
      {"let in = 1 in h < 2", "expr-name-taken", 1, 5, 2},
      {"let x 1 in h < 2", "expr-unexpected-token", 1, 7, 1},
      {"let x = 1 and h < 2", "expr-unexpected-end", 1, 20, 1},
      {"let x = 1, h < 2", "expr-unexpected-token", 1, 10, 1},
      {"let x = x in h < x", "expr-unknown-name", 1, 9, 1},
      {"(let x = 1 in h < x) and h < x", "expr-unknown-name", 1, 30, 1},
      {"let width = 1 in h < widht", "expr-unknown-name", 1, 22, 5, "did you mean `width`?"},
      {"let x = 1 in x(2) < h", "expr-not-a-function", 1, 14, 1},
      {"let x = 1 in x[2] < h", "expr-not-a-tensor", 1, 14, 1},
      {"h < let x = 1 in x", "expr-unexpected-token", 1, 5, 3},
      {"score < 1", "expr-not-allowed-here", 1, 1, 5},
      {"q_idx // 0 < 1", "expr-division-by-zero", 1, 10, 1},
      {"q_idx % (window - 4) < 1", "expr-division-by-zero", 1, 10, 10},
      {"q_idx / 0 < 1", "expr-division-by-zero", 1, 9, 1},
      {"dilated(0)", "expr-division-by-zero", 1, 1, 10, "inside the definition of `dilated`"},
      {"table[0, 4]", "expr-index-out-of-range", 1, 10, 1},
      {"table[-1, 0]", "expr-index-out-of-range", 1, 7, 2},
      {"doc[b, kv_len] == 1", "expr-index-out-of-range", 1, 8, 6},
      {"doc[b, 1 + kv_len] == 1", "expr-index-out-of-range", 1, 8, 10},
  };
  expect_errors(kRows, Role::kMask);
}

TEST(ExprErrors, WordsOfOtherLanguagesAreTranslated) {
  constexpr Row kMasks[] = {
      {"where(causal, true, false)", "expr-unknown-function", 1, 1, 5, "if condition else"},
      {"np.where(causal, true, false)", "expr-unknown-name", 1, 1, 8, "if condition else"},
      {"torch.logical_and(causal, h < 1)", "expr-unknown-name", 1, 1, 17, "`a and b`"},
      {"~causal", "expr-unknown-operator", 1, 1, 1, "`not`"},
      {"causal & (h < 1)", "expr-type-mismatch", 1, 1, 6, "`and`"},
      {"full", "expr-unknown-name", 1, 1, 4, "leave `mask` out"},
      {"None", "expr-unknown-name", 1, 1, 4, "leave `mask` out"},
      {"q_idx.max(4) < 3", "expr-unknown-name", 1, 1, 9, "`max(x, y)`"},
      {"doc.shape.nobody < 3", "expr-unknown-name", 1, 1, 16, "modules nor members"},
      {"causal. and h < 1", "expr-bad-character", 1, 7, 1},
  };
  expect_errors(kMasks, Role::kMask);
  constexpr Row kScores[] = {
      {"torch.tanh(score)", "expr-unknown-name", 1, 1, 10, "write `tanh(x)`"},
      {"score ** 2", "expr-unknown-operator", 1, 7, 2, "`pow(x, y)`"},
      {"torch.pow(score, 2)", "expr-unknown-name", 1, 1, 9, "write `pow(x, y)`"},
      {"torch.nn.functional.gelu(score)", "expr-unknown-name", 1, 1, 24, "`gelu(x: float32)`"},
      {"power(score, 2)", "expr-unknown-function", 1, 1, 5, "`pow(x, y)`"},
      {"pow(score)", "expr-wrong-argument-count", 1, 1, 10},
      {"sin(causal)", "expr-type-mismatch", 1, 5, 6},
      {"silu(causal)", "expr-type-mismatch", 1, 6, 6, "silu(x: float32)"},
  };
  expect_errors(kScores, Role::kScore);
}

TEST(ExprErrors, ScoresAndSinks) {
  constexpr Row kScores[] = {
      {"causal", "expr-wrong-result-type", 1, 1, 6, "if"},
      {"score if causal", "expr-unexpected-end", 1, 16, 1},
      {"tanh(causal)", "expr-type-mismatch", 1, 6, 6},
  };
  expect_errors(kScores, Role::kScore);
  constexpr Row kSinks[] = {
      {"score", "expr-not-allowed-here", 1, 1, 5},
      {"slope[h] + q_idx", "expr-not-allowed-here", 1, 12, 5},
      {"1 if causal else 2", "expr-not-allowed-here", 1, 6, 6},
  };
  expect_errors(kSinks, Role::kSink);
  EXPECT_TRUE(try_parse("slope[h] + 2 * b", Role::kSink).ok());
}

TEST(ExprErrors, ThePlaceIsTheFilesNotTheTexts) {
  const std::string file = "attune: 1\nmask: causal and\n  qidx < 3\n";
  const SourceOrigin origin = {.file = "a.yaml",
                               .line = 2,
                               .column = 7,
                               .continuation_column = 1,
                               .whole_file = file,
                               .positions = {}};
  const auto tree = parse("causal and\n  qidx < 3", test_environment(), Role::kMask, origin);
  ASSERT_FALSE(tree.ok());
  EXPECT_EQ(render(tree.error()),
            "a.yaml:3:3: error: unknown name `qidx` [expr-unknown-name]\n"
            "    3 |   qidx < 3\n"
            "      |   ^~~~\n"
            "      = did you mean `q_idx`?\n");
}

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Whatever nests, it is refused before it can exhaust the stack.
TEST(ExprErrors, NestingIsLimited) {
  const std::string texts[] = {
      repeated("(", 8000),
      repeated("(", 8000) + "h" + repeated(")", 8000),
      repeated("-", 16000) + "h < 1",
      repeated("not ", 4000) + "causal",
      "h" + repeated("+h", 8000) + " < 1",
      "causal" + repeated(" or causal", 1500),
      "h" + repeated("<h", 8000),
      repeated("doc[b,", 2500),
      repeated("abs(", 4000),
      repeated("h if causal else ", 900) + "h",
      repeated("abs(-(", 2700),
      repeated("let x = ", 2000),
      repeated("let x = 1 in ", 1200) + "h < 1",
  };
  for (const std::string& text : texts) {
    const auto tree = try_parse(text, Role::kMask);
    ASSERT_FALSE(tree.ok()) << text.substr(0, 40);
    EXPECT_EQ(tree.error().id, "expr-too-deep") << text.substr(0, 40);
    EXPECT_FALSE(render(tree.error()).empty());
  }
  EXPECT_TRUE(try_parse("h" + repeated("+h", 190) + " < 1", Role::kMask).ok());
  EXPECT_TRUE(try_parse(repeated("(", 190) + "causal" + repeated(")", 190), Role::kMask).ok());
}

// Each level uses its argument twice, so the tree doubles.
TEST(ExprErrors, ExpansionIsLimited) {
  std::string text = "h";
  for (int i = 0; i < 12; ++i) text = "(1 if local(" + text + "," + text + ") else 0)";
  const auto tree = try_parse(text + " < 1", Role::kMask);
  ASSERT_FALSE(tree.ok());
  EXPECT_THAT(tree.error().id, testing::AnyOf("expr-too-large", "expr-too-long"));
  std::string chain = "h";
  for (int i = 0; i < 20; ++i) chain = "(1 if global_window(1," + chain + ") else 0)";
  const auto doubled = try_parse(chain + " < 1", Role::kMask);
  ASSERT_FALSE(doubled.ok());
  EXPECT_EQ(doubled.error().id, "expr-too-large");
  std::string lets = "let x0 = h in ";
  for (int i = 1; i < 30; ++i) lets += fmt::format("let x{} = x{} + x{} in ", i, i - 1, i - 1);
  const auto again = try_parse(lets + "x29 < 1", Role::kMask);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().id, "expr-too-large");
  // What is folded away is in no tree.
  const std::string large = "h" + repeated("+h", 150) + " < 0";
  const auto folded =
      try_parse("any(i, 128, any(j, 63, false if true else (" + large + ")))", Role::kMask);
  ASSERT_FALSE(folded.ok());
  EXPECT_EQ(folded.error().id, "expr-too-large");
}

}  // namespace
}  // namespace attune::expr
