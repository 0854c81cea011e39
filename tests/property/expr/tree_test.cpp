// Folding keeps the value; printing keeps the tree.
#include <gtest/gtest.h>

#include <cmath>

#include "generator/expr/build.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

TEST(Trees, FoldingKeepsTheValue) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    // Folding rounds floats to float32, so only what floats decide may differ: leave them out.
    const Expr tree = RandomExpression(expression, {.floats = false}).boolean(6);
    const Expr folded = rebuilt(tree);
    const World world = random_world(data, 12);
    for (int q = 0; q < world.q_len; ++q)
      for (int k = 0; k < world.kv_len; ++k)
        RC_ASSERT(evaluate(tree, world.point(q, k)) == evaluate(folded, world.point(q, k)));
  }));
}

TEST(Trees, FoldingKeepsRealsToFloat32) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    const Expr tree = RandomExpression(expression, {.score = true, .smooth = true}).real(4);
    const Expr folded = rebuilt(tree);
    const World world = random_world(data, 6);
    const double a = evaluate(tree, world.point(0, 0, 0.5));
    const double b = evaluate(folded, world.point(0, 0, 0.5));
    RC_ASSERT(std::abs(a - b) <= 1e-3 * (1 + std::abs(a)));
  }));
}

TEST(Trees, PrintedTextReadsBack) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape();
    const Expr tree = rebuilt(RandomExpression(expression, {}).boolean(6));
    const std::string text = print(tree, random_environment());
    const auto again = parse(text, random_environment(), Role::kMask, {});
    // What the tree may hold and the language refuses.
    if (!again.ok() && (again.error().id == "expr-division-by-zero" ||
                        again.error().id == "expr-index-out-of-range" ||
                        again.error().id == "expr-shift-out-of-range"))
      return;
    if (!again.ok()) RC_FAIL(render(again.error()));
    RC_ASSERT(equal(tree, *again));
    RC_ASSERT(print(*again, random_environment()) == text);
  }));
}

// Any bytes give a tree or an error, and an error can be shown.
TEST(Trees, AnyTextIsAnswered) {
  EXPECT_TRUE(rc::check([](const std::string& text) {
    const auto tree = parse(text, random_environment(), Role::kMask, {});
    if (!tree.ok()) RC_ASSERT(!render(tree.error()).empty());
  }));
  EXPECT_TRUE(rc::check([](const std::vector<std::uint8_t>& tokens) {
    constexpr std::string_view kWords[] = {"q_idx",
                                           "kv_idx",
                                           "doc",
                                           "[",
                                           "]",
                                           "(",
                                           ")",
                                           ",",
                                           "+",
                                           "-",
                                           "*",
                                           "/",
                                           "//",
                                           "%",
                                           "&",
                                           "|",
                                           "^",
                                           "<<",
                                           ">>",
                                           "<",
                                           "==",
                                           "!=",
                                           "and",
                                           "or",
                                           "not",
                                           "let x =",
                                           "in",
                                           "x",
                                           "if",
                                           "else",
                                           "1",
                                           "2.5",
                                           "true",
                                           "min",
                                           "abs",
                                           "causal",
                                           "sliding_window",
                                           "b",
                                           "h",
                                           "value"};
    std::string text;
    for (const std::uint8_t token : tokens)
      text += std::string(kWords[token % std::size(kWords)]) + " ";
    const auto tree = parse(text, random_environment(), Role::kMask, {});
    if (!tree.ok()) RC_ASSERT(tree.error().span.line == 1);
  }));
}

}  // namespace
}  // namespace attune::expr
