#include "tests/property/expr/emitted_cases.hpp"

#include <gtest/gtest.h>

#include "generator/expr/parser.hpp"
#include "tests/property/expr/emitted_functions.hpp"
#include "tests/property/expr/random_expression.hpp"

namespace attune::expr {
namespace {

constexpr int kRandomMasks = 60;
constexpr int kRandomScores = 60;  // every other one of smooth functions alone

constexpr const char* kBlockRange = R"(#include "templates/tile/block_ranges.cuh"
#include "templates/tile/half_tensors.cuh"
extern "C" void block_range(const att::TensorArg* tensor, int type, int row, int block,
                            int length) {
  if (type == 0) att::make_pair_of_row<int>(*tensor, row, block, length);
  if (type == 1) att::make_pair_of_row<float>(*tensor, row, block, length);
  if (type == 2) att::make_pair_of_row<bool>(*tensor, row, block, length);
  if (type == 3) att::make_pair_of_row<att::Float16>(*tensor, row, block, length);
  if (type == 4) att::make_pair_of_row<att::BFloat16>(*tensor, row, block, length);
}
)";

// For case @, behind its functions.
constexpr const char* kCalls = R"(namespace {
using namespace att;
Context context@(const ForwardParams* p, int b, int h) {
  return {*p, b, h, h / (p->heads / p->kv_heads), p->q_len, p->kv_len};
}
}
extern "C" bool mask@(const att::ForwardParams* p, int b, int h, int q, int k) {
  return att::case@::mask(context@(p, b, h), q, k);
}
extern "C" float score@(const att::ForwardParams* p, int b, int h, float s, int q, int k) {
  return att::case@::score(context@(p, b, h), s, q, k);
}
extern "C" float score_of_sums@(const att::ForwardParams* p, int b, int h, float s, int q, int k) {
  const att::AtColumn<true> query{q - 8, 8}, key{k - 57, 57};
  return att::case@::score(context@(p, b, h), s, query, key);
}
extern "C" int classify@(const att::ForwardParams* p, int b, int h, int q0, int q1, int k0,
                         int k1) {
  return static_cast<int>(att::case@::classify_tile(context@(p, b, h), q0, q1, k0, k1));
}
extern "C" void kv_bounds@(const att::ForwardParams* p, int b, int h, int q0, int q1, int* out) {
  const auto bounds = att::case@::kv_bounds(context@(p, b, h), q0, q1);
  out[0] = bounds.begin; out[1] = bounds.end;
}
extern "C" void q_bounds@(const att::ForwardParams* p, int b, int h, int k0, int k1, int* out) {
  const auto bounds = att::case@::q_bounds(context@(p, b, h), k0, k1);
  out[0] = bounds.begin; out[1] = bounds.end;
}
extern "C" bool row_bounds@(const att::ForwardParams* p, int b, int h, int q, int* out) {
  const auto bounds = att::case@::row_bounds(context@(p, b, h), q);
  out[0] = att::case@::kRowHasBegin ? bounds.begin : 0;
  out[1] = att::case@::kRowHasEnd ? bounds.end : p->kv_len;
  return att::case@::kRowIsRange;
}
extern "C" bool mask_of_64@(const att::ForwardParams* p, int b, int h, int q, int first,
                            int lane, int column) {
  const att::TileKey<64, 64, true> key(first, lane, column);
  return att::case@::mask(context@(p, b, h), q, key);
}
extern "C" bool mask_of_48@(const att::ForwardParams* p, int b, int h, int q, int first,
                            int lane, int column) {
  const att::TileKey<16, 48, false> key(first, lane, column);
  return att::case@::mask(context@(p, b, h), q, key);
}
extern "C" bool score_line@(const att::ForwardParams* p, int b, int h, int q, int k, float* out) {
  const auto line = att::case@::score_line(context@(p, b, h), q, k);
  out[0] = line.base; out[1] = line.step;
  return att::case@::kScoreIsLine;
}
)";

}  // namespace

bool has_floats(const Expr& e) {
  if (e->type == Type::kFloat32) return true;
  for (const Expr& arg : e->args)
    if (has_floats(arg)) return true;
  return false;
}

std::vector<EmittedCase> emitted_cases(std::mt19937& random) {
  std::vector<EmittedCase> cases;
  for (const char* text : {"causal",
                           "causal_top_left",
                           "sliding_window(50)",
                           "sliding_window(w)",
                           "local(30, 20)",
                           "sink_window(40, 4)",
                           "sink_window(w, 4)",
                           "prefix_lm(60)",
                           "document(doc)",
                           "causal and document(doc)",
                           "padding(lengths)",
                           "dilated(3)",
                           "chunked(37)",
                           "chunked(w)",
                           "global_window(20, 5)",
                           "block_sparse(table, 32)",
                           "natten_2d(16, 5)",
                           "window_2d(16, 5)",
                           "tree(table)",
                           "big_bird(20, 5, table, 32)",
                           "value[kv_idx] > 2.5",
                           "3 * kv_idx == q_idx",
                           "kv_idx > q_idx or kv_idx > 5",
                           "-3 * kv_idx < q_idx - w",
                           "kv_idx < doc[b, q_idx] * 40 and 5 * kv_idx >= 2 * q_idx - 7",
                           "kv_idx // 7 // 3 < q_idx // 20",
                           "flag[h, q_idx] and causal",
                           "kv_idx >> (q_idx & 3) <= h + 9",
                           "(w << kv_idx % 35 - 2) > (q_idx | kv_idx)",
                           "(doc[b, kv_idx] ^ q_idx) & 6 == 2",
                           "((kv_idx - q_idx) & (w | 4)) % 5 == (q_idx ^ 77) % 5",
                           "any(i, 5, kv_idx - q_idx == 3 * i * i - 7 or kv_idx // 9 == i)",
                           "all(i, 3, (kv_idx + i * q_idx) % (i + 3) != 1) and causal",
                           "sum(i, 6, kv_idx // (i + 2)) > sum(i, 5, q_idx // (i + 1))",
                           "causal == (kv_idx & 64 == 0)",
                           "causal != document(doc) != (kv_idx > w)",
                           "sin(0.2 * kv_idx) > cos(0.15 * q_idx)",
                           "tan(0.01 * (kv_idx - q_idx)) < 0.2",
                           "pow(kv_idx, 0.7) < q_idx - w",
                           "silu(kv_idx - 99) < gelu(q_idx / 4)",
                           "softplus(kv_idx - 60) < 30 + erf(q_idx - 5)"}) {
    EmittedCase c = {.text = text};
    auto mask = parse(text, random_environment(), Role::kMask, {});
    EXPECT_TRUE(mask.ok()) << render(mask.error());
    c.expressions.mask = *mask;
    c.exact = !has_floats(*mask);
    cases.push_back(std::move(c));
  }
  const auto tape = [&] {
    Tape numbers(400);
    for (auto& number : numbers) number = static_cast<std::uint32_t>(random());
    return numbers;
  };
  for (int i = 0; i < kRandomMasks; ++i) {
    const Tape numbers = tape();
    // Through the parser, which proves indices as it does for a user.
    const Expr tree = rebuilt(RandomExpression(numbers, {.floats = i % 3 == 0}).boolean(1 + i % 5));
    EmittedCase c = {.text = print(tree, random_environment())};
    auto mask = parse(c.text, random_environment(), Role::kMask, {});
    if (!mask.ok()) continue;
    c.expressions.mask = *mask;
    c.exact = !has_floats(*mask);
    cases.push_back(std::move(c));
  }
  for (const char* text :
       {"score + (q_idx - kv_idx)", "score - 0.25 * h * (q_idx + kv_len - kv_idx)",
        "(kv_idx * 3 - q_idx) / 7.0 * 0.5 + score + h", "score - 0.25 * abs(q_idx - kv_idx)",
        "2 * score + kv_idx", "score * (2 if kv_idx > q_idx else 3)",
        "score + (5 if q_idx - kv_idx < kv_idx - q_idx else 3)",
        "exp2(0.3 * log2(1 + abs(score * kv_idx)))", "score / (1 + abs(q_idx - kv_idx))",
        "log(1 + abs(score)) * sqrt(1.0 * kv_idx) - exp(-0.01 * q_idx)",
        "score * value[kv_idx] + 0.5 * floor(score * q_idx / 3)",
        "value[min(floor(abs(score) * 7), kv_len - 1)] - tanh(score / x)",
        "score + dot(i, 3, value[min(kv_idx, i)], value[kv_idx] * i)",
        "sin(score * q_idx) + cos(kv_idx) - tan(0.003 * kv_idx)", "sin(200 * kv_idx) * cos(-q_idx)",
        "erf((kv_idx - q_idx) * 0.02) + gelu(score * h - 0.01 * kv_idx)",
        "silu(kv_idx - 100) - softplus(0.2 * (q_idx - kv_idx))",
        "pow(kv_idx * 0.1, score) + pow(q_idx - 9, 3) + pow(1.1, q_idx - kv_idx)",
        "pow(score - 1, kv_idx % 40) + pow(kv_idx % 3 - 1, q_idx % 7 - 3)"}) {
    EmittedCase c = {.text = text};
    auto score = parse(text, random_environment(), Role::kScore, {});
    EXPECT_TRUE(score.ok()) << render(score.error());
    c.expressions.score = *score;
    cases.push_back(std::move(c));
  }
  for (int i = 0; i < kRandomScores; ++i) {
    const Tape numbers = tape();
    EmittedCase c;
    c.expressions.score =
        rebuilt(RandomExpression(numbers, {.score = true, .smooth = i % 2 == 0}).real(1 + i % 5));
    c.text = print(c.expressions.score, random_environment());
    cases.push_back(std::move(c));
  }
  return cases;
}

std::string source_of(const std::vector<EmittedCase>& cases, const Environment& environment) {
  std::string text = kBlockRange;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    text += support_includes(cases[i].expressions, environment) +
            numbered("namespace att { namespace case@ {\n", i) +
            emit_functions(cases[i].expressions, environment) + "} }\n" + numbered(kCalls, i);
  }
  return text;
}

void find_functions(void* library, std::size_t number, EmittedCase& c) {
  const auto named = [&](const std::string& name, auto& function) {
    find(library, name + std::to_string(number), function);
  };
  named("mask", c.functions.mask);
  named("score", c.functions.score);
  named("score_of_sums", c.functions.score_of_sums);
  named("classify", c.functions.classify);
  named("kv_bounds", c.functions.kv_bounds);
  named("q_bounds", c.functions.q_bounds);
  named("row_bounds", c.functions.row_bounds);
  named("mask_of_64", c.functions.mask_of_64);
  named("mask_of_48", c.functions.mask_of_48);
  named("score_line", c.functions.score_line);
}

}  // namespace attune::expr
