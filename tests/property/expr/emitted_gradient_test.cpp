// The functions of a backward head, built by the system's C++ compiler and called, against the
// evaluator.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "generator/expr/build.hpp"
#include "generator/expr/derivative.hpp"
#include "generator/expr/emit_gradients.hpp"
#include "generator/expr/look_up_pattern.hpp"
#include "generator/expr/parser.hpp"
#include "generator/expr/score_core.hpp"
#include "tests/property/expr/emitted_functions.hpp"
#include "tests/property/expr/noise.hpp"
#include "tests/property/expr/random_expression.hpp"

namespace attune::expr {
namespace {

constexpr float kScale = 0.0625f;
constexpr int kMostLookUps = 4;

// What the library fills in, as it stands in kPrelude, too.
struct Gradients {
  float grad, score_of_pair, grad_of_pair, core, core_of_pair, grad_of_core;
  bool is_one;
};
struct LookUp {
  int slot;
  bool is_one, by_query, by_key, is_distance;
  int bins;
  long long offset, base;
  float partial;
};
constexpr const char* kPrelude = R"(
struct Gradients {
  float grad, score_of_pair, grad_of_pair, core, core_of_pair, grad_of_core;
  bool is_one;
};
struct LookUp {
  int slot;
  bool is_one, by_query, by_key, is_distance;
  int bins;
  long long offset, base;
  float partial;
};
)";

// For case @, behind its functions. As sums: of a query and a key of templates/tile/columns.cuh.
constexpr const char* kCalls = R"(
inline Context context(const ForwardParams* p, int b, int h) {
  return {*p, b, h, h / (p->heads / p->kv_heads), p->q_len, p->kv_len};
}
template <typename Query, typename Key>
void fill(const Context& c, float s, float product, Query q, Key k, Gradients* out) {
  const auto pair = score_with_grad(c, s, q, k);
  const auto core = score_core_with_grad(c, product, q, k);
  *out = {score_grad(c, s, q, k), pair.score, pair.gradient, score_core(c, product, q, k),
          core.score, core.gradient, kScoreGradIsOne};
}
template <int i, typename Query, typename Key>
int look_ups(const Context& c, float s, Query q, Key k, LookUp* out) {
  if constexpr (i < kGradLoads) {
    out[i] = {kGradLoadSlot[i], kGradLoadIsOne[i], kGradLoadVariesByQuery[i],
              kGradLoadVariesByKey[i], kGradLoadIsDistance[i], kGradLoadBins[i],
              grad_load_offset<i>(c, q, k), grad_load_base<i>(c), score_grad_load<i>(c, s, q, k)};
    return look_ups<i + 1>(c, s, q, k, out);
  }
  return kGradLoads;
}
template <int i>
int sink_look_ups(const Context& c, LookUp* out) {
  if constexpr (i < kSinkGradLoads) {
    out[i].slot = kSinkGradLoadSlot[i];
    out[i].offset = sink_grad_load_offset<i>(c);
    out[i].partial = sink_grad_load<i>(c);
    return sink_look_ups<i + 1>(c, out);
  }
  return kSinkGradLoads;
}
} }
extern "C" void gradients@(const att::ForwardParams* p, int b, int h, float s, float product, int q,
                           int k, bool as_sums, Gradients* out) {
  const auto c = att::case@::context(p, b, h);
  const att::AtColumn<true> query{q - 8, 8};
  const att::TileKey<64, 64, false> key(k - k % 64, k % 8 / 2 * 2, k % 64 - k % 8 / 2 * 2);
  as_sums ? att::case@::fill(c, s, product, query, key, out)
          : att::case@::fill(c, s, product, q, k, out);
}
extern "C" int look_ups@(const att::ForwardParams* p, int b, int h, float s, int q, int k,
                         bool as_sums, LookUp* out) {
  const auto c = att::case@::context(p, b, h);
  const att::AtColumn<true> query{q - 8, 8};
  const att::TileKey<64, 64, false> key(k - k % 64, k % 8 / 2 * 2, k % 64 - k % 8 / 2 * 2);
  return as_sums ? att::case@::look_ups<0>(c, s, query, key, out)
                 : att::case@::look_ups<0>(c, s, q, k, out);
}
extern "C" int sink_look_ups@(const att::ForwardParams* p, int b, int h, LookUp* out) {
  return att::case@::sink_look_ups<0>(att::case@::context(p, b, h), out);
}
)";

struct Case {
  std::string text;
  HeadExpressions expressions;
  void (*gradients)(const att::ForwardParams*, int b, int h, float s, float product, int q, int k,
                    bool as_sums, Gradients*) = nullptr;
  int (*look_ups)(const att::ForwardParams*, int b, int h, float s, int q, int k, bool as_sums,
                  LookUp*) = nullptr;
  int (*sink_look_ups)(const att::ForwardParams*, int b, int h, LookUp*) = nullptr;
};

const Environment& learning_environment() {
  static const Environment environment = [] {
    Environment e = random_environment();
    const DimSize heads = {.dim = Dim::kHeads};
    e.tensors.push_back({.name = "slope", .dims = {heads}, .grad = true});
    e.tensors.push_back({.name = "t", .dims = {heads, {.number = 32}}, .grad = true});
    e.tensors.push_back({.name = "dense",
                         .dims = {heads, {.dim = Dim::kQLen}, {.dim = Dim::kKvLen}},
                         .grad = true});
    return e;
  }();
  return environment;
}

World learning_world(std::mt19937& random) {
  Tape numbers(400);
  for (auto& number : numbers) number = static_cast<std::uint32_t>(random());
  World world = random_world(numbers, 200);
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{world.heads},
                                                 {world.heads, 32},
                                                 {world.heads, world.q_len, world.kv_len}}) {
    TensorValues tensor = {sizes, {}};
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    std::uniform_int_distribution<int> eighths(-30, 30);
    for (std::int64_t i = 0; i < count; ++i) tensor.values.push_back(eighths(random) / 8.0);
    world.tensors.push_back(std::move(tensor));
  }
  return world;
}

std::vector<Case> make_cases(std::mt19937& random) {
  std::vector<Case> cases;
  const auto parsed = [](std::string_view text, Role role) {
    auto tree = parse(text, learning_environment(), role, {});
    EXPECT_TRUE(tree.ok()) << render(tree.error());
    return tree.ok() ? *tree : nullptr;
  };
  for (const char* text :
       {"score", "20 * tanh(score / 20)", "x * tanh((score + slope[h]) / x)",
        "score - slope[h] * (q_idx + kv_len - q_len - kv_idx)",
        "score + t[h, (16 if kv_idx > q_idx else 0) + min(15, abs(kv_idx - q_idx))]",
        "score + t[h, max(0, min(31, kv_idx - q_idx + 16))]", "score + dense[h, q_idx, kv_idx]",
        "score * slope[h] + t[h, kv_idx % 32] * t[h, q_idx % 32]",
        "score + slope[h] * t[h, (kv_idx - q_idx) % 32] + t[h, doc[b, kv_idx] % 32]",
        "1 / (1 + exp(-score)) * 4", "max(score, 0.1 * score) + 2 * score * sigmoid(score)",
        "abs(score - 100) if kv_idx < q_idx else sqrt(score * score + 2)",
        "log(exp(score / 8) + 1) - 3 * score / (x * x + 1)", "slope[h] * kv_idx",
        "sin(score) * slope[h] + cos(score / 2)", "gelu(score) + silu(score) - softplus(score)",
        "pow(1 + score * score, slope[h] / 4) + erf(score)"}) {
    cases.push_back(
        {.text = text,
         .expressions = {.score = parsed(text, Role::kScore), .softmax_scale = kScale}});
  }
  cases.push_back({.text = "none", .expressions = {.softmax_scale = kScale}});
  for (const char* text : {"slope[h]", "2 * slope[h] + tanh(t[h, 3]) * t[h_kv, b]"})
    cases.push_back({.text = text, .expressions = {.sink = parsed(text, Role::kSink)}});
  for (int i = 0; i < 30; ++i) {
    Tape numbers(400);
    for (auto& number : numbers) number = static_cast<std::uint32_t>(random());
    Case c;
    c.expressions.score =
        rebuilt(RandomExpression(numbers, {.score = true, .smooth = true}).real(1 + i % 5));
    c.expressions.softmax_scale = i % 2 ? kScale : 1;
    c.text = print(c.expressions.score, learning_environment());
    cases.push_back(std::move(c));
  }
  return cases;
}

// Single precision, with functions that are good to a few ulps, and terms of a sum in any order.
constexpr Precision kKernel = {.literal = 0x1p-21, .operation = 0x1p-21};

void expect_value(float got, const Expr& expected, const Point& at, const char* what) {
  const double value = evaluate(expected, at), tolerance = noise(expected, at, kKernel);
  if (!std::isfinite(tolerance) || std::abs(value) > 1e30) return;
  ASSERT_NEAR(got, value, tolerance + 1e-30) << what;
}

class EmittedGradients : public EmittedFunctions {
 protected:
  void check(const Case& c, const World& world, const att::ForwardParams& params, int q, int k,
             float s, bool as_sums) {
    const Expr score = c.expressions.score ? c.expressions.score : make_variable(Variable::kScore);
    const Expr slope = derivative(score, make_variable(Variable::kScore));
    const Point point = world.point(q, k, s);
    Gradients got;
    c.gradients(&params, world.b, world.h, s, s / c.expressions.softmax_scale, q, k, as_sums, &got);
    ASSERT_EQ(got.is_one, is_constant(slope) && constant_value(slope) == 1);
    ASSERT_NO_FATAL_FAILURE(expect_value(got.grad, slope, point, "score_grad"));
    ASSERT_NO_FATAL_FAILURE(expect_value(got.grad_of_pair, slope, point, "score_with_grad"));
    ASSERT_NO_FATAL_FAILURE(expect_value(got.score_of_pair, score, point, "score_with_grad"));
    ASSERT_TRUE(got.core == got.core_of_pair || std::isnan(got.core));
    // Of another form: off by what either form may be.
    const ScoreCore core = score_core(score, c.expressions.softmax_scale);
    const Expr core_slope =
        derivative(core.core, make_variable(Variable::kScore),
                   static_cast<double>(core.multiplier) / c.expressions.softmax_scale);
    const Point product = world.point(q, k, s / c.expressions.softmax_scale);
    ASSERT_NO_FATAL_FAILURE(
        expect_value(got.grad_of_core, core_slope, product, "score_core_with_grad"));
    const double tolerance = noise(slope, point, kKernel) + noise(core_slope, product, kKernel);
    if (std::isfinite(tolerance)) {
      // What cancels in one form, and not in the other, leaves the last bits of a double.
      ASSERT_NEAR(evaluate(core_slope, product), evaluate(slope, point), tolerance + 1e-14);
    }

    LookUp look_ups[kMostLookUps];
    const auto expected = look_up_derivatives(score, learning_environment());
    ASSERT_EQ(c.look_ups(&params, world.b, world.h, s, q, k, as_sums, look_ups),
              static_cast<int>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NO_FATAL_FAILURE(check_look_up(expected[i], look_ups[i], point));
  }

  void check_look_up(const LookUpDerivative& expected, const LookUp& got, const Point& at) {
    const LookUpPattern pattern = look_up_pattern(expected.look_up, learning_environment());
    ASSERT_EQ(got.slot, expected.look_up->slot);
    ASSERT_EQ(got.is_one, is_constant(expected.partial) && constant_value(expected.partial) == 1);
    ASSERT_EQ(got.by_query, pattern.varies_by_query);
    ASSERT_EQ(got.by_key, pattern.varies_by_key);
    ASSERT_EQ(got.is_distance, pattern.is_distance);
    ASSERT_EQ(got.bins, pattern.bins);
    const std::int64_t offset = look_up_offset(expected.look_up, at);
    ASSERT_EQ(got.offset, offset);
    if (got.bins > 0) {
      ASSERT_LE(got.base, offset);
      ASSERT_LT(offset, got.base + got.bins);
    }
    ASSERT_NO_FATAL_FAILURE(expect_value(got.partial, expected.partial, at, "score_grad_load"));
  }

  void check_sink(const Case& c, const World& world, const att::ForwardParams& params) {
    LookUp look_ups[kMostLookUps];
    const auto expected = look_up_derivatives(c.expressions.sink, learning_environment());
    ASSERT_EQ(c.sink_look_ups(&params, world.b, world.h, look_ups),
              static_cast<int>(expected.size()));
    const Point at = world.point(0, 0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(look_ups[i].slot, expected[i].look_up->slot);
      ASSERT_EQ(look_ups[i].offset, look_up_offset(expected[i].look_up, at));
      ASSERT_NO_FATAL_FAILURE(
          expect_value(look_ups[i].partial, expected[i].partial, at, "sink_grad_load"));
    }
  }
};

TEST_F(EmittedGradients, AgreeWithTheEvaluator) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<Case> cases = make_cases(random);
  std::string text = kPrelude;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    text += support_includes(cases[i].expressions, learning_environment());
    text += numbered("namespace att { namespace case@ {\n", i) +
            emit_functions(cases[i].expressions, learning_environment()) +
            emit_gradients(cases[i].expressions, learning_environment()) + numbered(kCalls, i);
  }
  void* library = build(text);
  if (!library && !HasFailure()) GTEST_SKIP() << "no C++ compiler to build the emitted text with";
  ASSERT_NE(library, nullptr) << build_error();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    find(library, numbered("gradients@", i), cases[i].gradients);
    find(library, numbered("look_ups@", i), cases[i].look_ups);
    find(library, numbered("sink_look_ups@", i), cases[i].sink_look_ups);
  }
  for (int round = 0; round < 6; ++round) {
    const World world = learning_world(random);
    Launch launch(world, learning_environment());
    for (const Case& c : cases) {
      SCOPED_TRACE(c.text);
      ASSERT_NO_FATAL_FAILURE(check_sink(c, world, launch.params));
      for (int i = 0; i < 60; ++i) {
        const auto below = [&](int n) {
          return static_cast<int>(random() % static_cast<unsigned>(n));
        };
        const int q = below(world.q_len), k = below(world.kv_len);
        // Exact in float32, and so is its quotient by the scale.
        const float s = static_cast<float>(below(4001) - 2000) / 256.0f + 1.0f / 512;
        SCOPED_TRACE(testing::Message() << "q " << q << ", k " << k << ", s " << s);
        for (const bool as_sums : {false, true}) {
          ASSERT_NO_FATAL_FAILURE(check(c, world, launch.params, q, k, s, as_sums));
        }
      }
    }
  }
  // Bounded scores have a slope of 0 far out, not NaN.
  const World world = learning_world(random);
  Launch launch(world, learning_environment());
  for (const Case& c : cases) {
    if (c.text != "20 * tanh(score / 20)" && c.text != "1 / (1 + exp(-score)) * 4") continue;
    for (const float s : {3e3f, -3e3f, 3e37f, -3e37f}) {
      Gradients got;
      c.gradients(&launch.params, 0, 0, s, s, 0, 0, false, &got);
      EXPECT_EQ(got.grad, 0) << c.text << s;
      EXPECT_EQ(got.grad_of_pair, 0) << c.text << s;
      EXPECT_NEAR(got.grad_of_core, 0, 1e-6) << c.text << s;
    }
  }
}

}  // namespace
}  // namespace attune::expr
