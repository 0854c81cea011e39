#include <gmock/gmock.h>

#include "generator/expr/emit_functions.hpp"
#include "generator/expr/emit_value.hpp"
#include "generator/expr/mask_programs.hpp"
#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string emitted(std::string_view mask) {
  return emit_functions({.mask = parsed(mask), .score = nullptr, .sink = nullptr},
                        test_environment());
}

TEST(Emit, Values) {
  struct Row {
    std::string_view text, body;
  };
  constexpr Row kRows[] = {
      {"causal", "  return kv_idx <= (q_idx + (c.kv_len - c.q_len));\n"},
      {"q_idx // 8 == kv_idx % 8", "  return (q_idx >> 3) == (kv_idx & 7);\n"},
      {"q_idx // 6 == 1", "  return static_cast<int>(static_cast<unsigned>(q_idx) / 6u) == 1;\n"},
      {"(q_idx - kv_idx) // 6 == 1", "  return floor_divide((q_idx - kv_idx), 6) == 1;\n"},
      {"q_idx + limit < 3", "  return add_i32(q_idx, c.params.scalars[2].as_int) < 3;\n"},
      {"q_idx == -2147483648", "  return static_cast<int>(q_idx) == (-2147483647 - 1);\n"},
      {"score / 3", "  return s * 0.33333334f;\n"},
      {"score / cap", "  return math_divide(s, c.params.scalars[1].as_float);\n"},
      {"score * 1e-30 - 2", "  return (s * 1e-30f) - 2.0f;\n"},
      {"(q_idx + 1) * (q_idx + 1) < kv_idx",
       "  const int t0 = q_idx + 1;\n  return multiply_i32(t0, t0) < static_cast<int>(kv_idx);\n"},
      {"abs(q_idx - kv_idx) <= 6", "  return is_within(q_idx - kv_idx, 6);\n"},
      {"abs(q_idx - kv_idx) < limit",
       "  return abs_i32((q_idx - kv_idx)) < c.params.scalars[2].as_int;\n"},
      {"causal_top_left or q_idx < 4", "  return (kv_idx <= q_idx) | (q_idx < 4);\n"},
      {"doc[b, kv_idx] == 1",
       "  const int t0 = load_i32(c.params.tensors[0], static_cast<long long>(c.b) * "
       "c.params.kv_len, clamp_tail(kv_idx, c.params.kv_len));\n  return "
       "t0 == 1;\n"},
      {"slope[h] < 1",
       "  const float t0 = load_f32(c.params.tensors[1], c.h);\n"
       "  return t0 < 1.0f;\n"},
      {"q_idx >> 3 == (kv_idx & 7)", "  return (q_idx >> 3) == (kv_idx & 7);\n"},
      {"q_idx >> h == (kv_idx & 5)", "  return shift_right(q_idx, c.h) == bit_and(kv_idx, 5);\n"},
      {"(h < 1) != (b < 1)", "  return (c.h < 1) != (c.b < 1);\n"},
      {"let d = abs(q_idx - kv_idx) in d * 2 < h or d > 9",
       "  const int t0 = abs_i32((q_idx - kv_idx));\n"
       "  return ((t0 * 2) < c.h) | (t0 > 9);\n"},
      {"sin(score) + pow(3, score)", "  return math_sin(s) + math_exp2(s * 1.5849625f);\n"},
      {"pow(score, cap)", "  return math_pow(s, c.params.scalars[1].as_float);\n"},
      {"gain < 1", "  const float t0 = load_f32(c.params.tensors[3], 0);\n  return t0 < 1.0f;\n"},
      {"exp2(score) if score > 2 else score",
       "  const float t0 = math_exp2(s);\n  return (s > 2.0f) ? t0 : s;\n"},
      {"table[q_idx % 4, h % 4]",
       "  const bool t0 = load_bool(c.params.tensors[2], static_cast<long long>(q_idx & 3) * 4 + "
       "(c.h & 3));\n  return t0;\n"},
      {"table[q_idx % 4, h - 1]",
       "  const bool t0 = load_bool(c.params.tensors[2], static_cast<long long>(q_idx & 3) * 4 + "
       "clamp_index(c.h - 1, 4));\n  return t0;\n"},
  };
  for (const Row& row : kRows)
    EXPECT_EQ(emit_value(parsed(row.text), test_environment()), row.body) << row.text;
}

TEST(Emit, ProductsAreRoundedByThemselvesWhereKernelsAreToAgree) {
  const Expr score = parsed("score * cap - score / 3");
  EXPECT_THAT(emit_value(score, test_environment(), Products::kRounded),
              HasSubstr("return rounded_product(s, c.params.scalars[1].as_float) - "
                        "rounded_product(s, 0.33333334f);"));
  const HeadExpressions head = {
      .mask = nullptr, .score = score, .sink = nullptr, .rounds_products = true};
  EXPECT_THAT(support_includes(head, test_environment()), HasSubstr("rounded.cuh"));
}

TEST(Emit, CausalIsTwoComparisonsATile) {
  const std::string text = emitted("causal");
  EXPECT_THAT(text, HasSubstr("const bool every = kv_last <= ((c.kv_len - c.q_len) + q_first);"));
  EXPECT_THAT(text, HasSubstr("const bool any = kv_first <= ((c.kv_len - c.q_len) + q_last);"));
  EXPECT_THAT(text, HasSubstr("constexpr bool kRowIsRange = true;"));
  EXPECT_THAT(text, HasSubstr("constexpr bool kRowHasBegin = false;"));
}

TEST(Emit, FunctionsThatFewUseAreIncludedForThem) {
  const auto includes = [](std::string_view score) {
    return support_includes({.mask = parsed("causal"), .score = parsed(score), .sink = nullptr},
                            test_environment());
  };
  EXPECT_EQ(includes("tanh(sigmoid(exp(score)))"), "");
  EXPECT_EQ(includes("score + 2 * sin(h)"), "#include \"templates/tile/functions.cuh\"\n");
  EXPECT_EQ(includes("gelu(score)"), includes("score + 2 * sin(h)"));
  EXPECT_EQ(includes("score + (q_idx >> 4 & 7)"), "");
  EXPECT_EQ(includes("score + (q_idx ^ h)"), "#include \"templates/tile/bits.cuh\"\n");
}

TEST(Emit, WithoutAMaskEverythingIsFull) {
  const std::string text =
      emit_functions({.mask = nullptr, .score = nullptr, .sink = nullptr}, test_environment());
  EXPECT_THAT(text, HasSubstr("return true;"));
  EXPECT_THAT(text, HasSubstr("return TileClass::kFull;"));
  EXPECT_THAT(text, HasSubstr("return {0, c.kv_len};"));
}

TEST(Emit, ASoftcapIsFourOperationsWithTheScaleInOneOfThem) {
  const std::string text = emit_functions({.mask = nullptr,
                                           .score = parsed("50 * tanh(score / 50)"),
                                           .sink = nullptr,
                                           .softmax_scale = 0.0625f},
                                          test_environment());
  EXPECT_THAT(text, HasSubstr("constexpr float kScoreMultiplier = 100.0f;"));
  EXPECT_THAT(text, HasSubstr("constexpr float kScoreOffset = (-50.0f);"));
  EXPECT_THAT(text,
              HasSubstr("return math_divide(1.0f, (1.0f + math_exp2((s * (-0.0036067376f)))));"));
}

// The body of the emitted function whose signature begins with `name`, up to its last line.
std::string body_of(const std::string& text, const std::string& name) {
  const std::size_t begin = text.find("{\n", text.find(" " + name + "(")) + 2;
  return text.substr(begin, text.find("}\n", begin) - begin);
}

TEST(Emit, MasksInParts) {
  struct Row {
    std::string_view mask, row, column, rest;
  };
  constexpr Row kRows[] = {
      {"causal", "  const int v0 = q_idx + (c.kv_len - c.q_len);\n  return {q_idx, v0};\n",
       "  return {};\n", "  return kv_idx <= row.v0;\n"},
      {"causal_top_left", "  return {q_idx};\n", "  return {};\n",
       "  return kv_idx <= row.q_idx;\n"},
      {"doc[b, q_idx] == doc[b, kv_idx] and kv_idx // 8 == q_idx // 8",
       "  const int t0 = load_i32(c.params.tensors[0], static_cast<long long>(c.b) * "
       "c.params.kv_len + clamp_above(q_idx, c.params.kv_len));\n"
       "  const int v0 = t0;\n  const int v1 = q_idx >> 3;\n  return {q_idx, v0, v1};\n",
       "  const int t0 = load_i32(c.params.tensors[0], static_cast<long long>(c.b) * "
       "c.params.kv_len, clamp_tail(kv_idx, c.params.kv_len));\n  const "
       "int v0 = t0;\n  return {v0};\n",
       "  return (row.v0 == column.v0) & ((kv_idx >> 3) == row.v1);\n"},
      {"(q_idx < 4 and q_idx > 1) or kv_idx < 4",
       "  const bool v0 = (q_idx < 4) & (q_idx > 1);\n  return {q_idx, v0};\n", "  return {};\n",
       "  return row.v0 | (kv_idx < 4);\n"},
  };
  for (const Row& row : kRows) {
    const std::string text = emitted(row.mask);
    EXPECT_EQ(body_of(text, "mask_row"), row.row) << row.mask;
    EXPECT_EQ(body_of(text, "mask_column"), row.column) << row.mask;
    EXPECT_EQ(body_of(text, "mask_at"), row.rest) << row.mask;
  }
}

TEST(Emit, NoUserTextReachesTheSource) {
  for (std::string_view name : {"doc", "slope", "table", "cap", "limit"}) {
    const std::string text =
        emitted("document(doc) and slope[h] < cap and limit < h or table[h, 0]");
    EXPECT_THAT(text, Not(HasSubstr(std::string(name) + "["))) << name;
    EXPECT_THAT(text, Not(HasSubstr(" " + std::string(name) + " "))) << name;
  }
}

TEST(Emit, RowRanges) {
  struct Row {
    std::string_view mask;
    bool is_range;
  };
  constexpr Row kRows[] = {{"causal", true},
                           {"sliding_window(7)", true},
                           {"sliding_window(limit)", true},
                           {"chunked(64)", true},
                           {"local(3, 4)", true},
                           {"prefix_lm(9)", true},
                           {"kv_idx > q_idx or kv_idx > 5", true},
                           {"kv_idx < doc[b, q_idx]", true},
                           {"abs(q_idx - kv_idx) < 9 and h < 3", true},
                           {"3 * kv_idx == q_idx", true},
                           {"not kv_idx > q_idx", true},
                           {"kv_idx != q_idx", false},
                           {"sink_window(9, 1)", false},
                           {"dilated(2)", false},
                           {"document(doc)", false},
                           {"kv_idx + limit < q_idx", false},  // may wrap
                           {"kv_idx * 0.5 < 3", false}};
  for (const Row& row : kRows)
    EXPECT_EQ(row_bounds_program(parsed(row.mask)) != nullptr, row.is_range) << row.mask;
}

TEST(Emit, ScoresThatAreLines) {
  struct Row {
    std::string_view score, line;  // empty: not one
  };
  constexpr Row kRows[] = {
      {"score + (q_idx - kv_idx)", "return {static_cast<float>((q_idx - kv_idx)), -1.0f};"},
      {"score * 2 + kv_idx", ""},
      {"score + abs(q_idx - kv_idx)", ""},
      {"score * kv_idx", ""},
      {"kv_idx - score", ""},
      {"score + kv_idx * limit", ""},  // may wrap
      {"tanh(score)", ""},
      {"score + slope[h]", "constexpr bool kScoreIsLine = true;"},
      {"score + cap * kv_idx / 3", "constexpr bool kScoreIsLine = true;"},
  };
  for (const Row& row : kRows) {
    const std::string text = emit_functions(
        {.mask = nullptr, .score = parsed(row.score), .sink = nullptr}, test_environment());
    EXPECT_THAT(text, HasSubstr(row.line.empty() ? "constexpr bool kScoreIsLine = false;"
                                                 : std::string(row.line)))
        << row.score;
  }
}

TEST(Emit, ALongMaskIsNotAnalysed) {
  std::string mask = "q_idx % 3 * kv_idx < 1";
  for (int i = 0; i < 150; ++i)
    mask +=
        " or (q_idx + " + std::to_string(i) + ") % 7 * (kv_idx % 5) // 3 < " + std::to_string(i);
  const std::string text = emitted(mask);
  EXPECT_THAT(text, HasSubstr("const bool every = false;"));
  EXPECT_THAT(text, HasSubstr("const bool any = true;"));
}

}  // namespace
}  // namespace attune::expr
