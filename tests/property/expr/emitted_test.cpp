// The emitted functions, built by the system's C++ compiler and called, against the evaluator and
// against each other. One library of many random expressions a run.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "generator/expr/emit_functions.hpp"
#include "generator/expr/inexact.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/emitted_functions.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

constexpr int kRandomMasks = 60;
constexpr int kRandomScores = 60;  // every other one of smooth functions alone

struct Functions {
  bool (*mask)(const att::ForwardParams*, int b, int h, int q, int k);
  float (*score)(const att::ForwardParams*, int b, int h, float s, int q, int k);
  decltype(score) score_of_sums;  // the same, of keys and queries that are sums
  int (*classify)(const att::ForwardParams*, int b, int h, int q0, int q1, int k0, int k1);
  void (*kv_bounds)(const att::ForwardParams*, int b, int h, int q0, int q1, int* bounds);
  void (*q_bounds)(const att::ForwardParams*, int b, int h, int k0, int k1, int* bounds);
  bool (*row_bounds)(const att::ForwardParams*, int b, int h, int q, int* bounds);
  // As columns.cuh lets a tile ask: tiles of 64 keys, and of 48, of which the last may be ragged.
  bool (*mask_of_64)(const att::ForwardParams*, int b, int h, int q, int first, int lane,
                     int column);
  bool (*mask_of_48)(const att::ForwardParams*, int b, int h, int q, int first, int lane,
                     int column);
  bool (*score_line)(const att::ForwardParams*, int b, int h, int q, int k, float* line);
};

struct Case {
  std::string text;
  HeadExpressions expressions;
  bool exact = false;  // no floats: bit for bit what the evaluator says
  Functions functions = {};
};

// What stands around the emitted text of case `index`.
std::string wrapped(std::size_t index, const std::string& functions) {
  return "namespace att { namespace case" + std::to_string(index) + " {\n" + functions +
         "} }\n"
         "namespace {\n"
         "using namespace att;\n"
         "Context context" +
         std::to_string(index) +
         "(const ForwardParams* p, int b, int h) {\n"
         "  return {*p, b, h, h / (p->heads / p->kv_heads), p->q_len, p->kv_len};\n"
         "}\n"
         "}\n" +
         [&] {
           std::string text =
               "extern \"C\" bool mask@(const att::ForwardParams* p, int b, int h, int q, int k) "
               "{\n"
               "  return att::case@::mask(context@(p, b, h), q, k);\n"
               "}\n"
               "extern \"C\" float score@(const att::ForwardParams* p, int b, int h, float s, int "
               "q, "
               "int k) {\n"
               "  return att::case@::score(context@(p, b, h), s, q, k);\n"
               "}\n"
               "extern \"C\" float score_of_sums@(const att::ForwardParams* p, int b, int h, float "
               "s, int q, int k) {\n"
               "  const att::AtColumn<true> query{q - 8, 8}, key{k - 57, 57};\n"
               "  return att::case@::score(context@(p, b, h), s, query, key);\n"
               "}\n"
               "extern \"C\" int classify@(const att::ForwardParams* p, int b, int h, int q0, int "
               "q1,"
               " int k0, int k1) {\n"
               "  return static_cast<int>(att::case@::classify_tile(context@(p, b, h), q0, q1, k0, "
               "k1));\n"
               "}\n"
               "extern \"C\" void kv_bounds@(const att::ForwardParams* p, int b, int h, int q0, "
               "int "
               "q1, int* out) {\n"
               "  const auto bounds = att::case@::kv_bounds(context@(p, b, h), q0, q1);\n"
               "  out[0] = bounds.begin; out[1] = bounds.end;\n"
               "}\n"
               "extern \"C\" void q_bounds@(const att::ForwardParams* p, int b, int h, int k0, int "
               "k1, int* out) {\n"
               "  const auto bounds = att::case@::q_bounds(context@(p, b, h), k0, k1);\n"
               "  out[0] = bounds.begin; out[1] = bounds.end;\n"
               "}\n"
               "extern \"C\" bool row_bounds@(const att::ForwardParams* p, int b, int h, int q, "
               "int* "
               "out) {\n"
               "  const auto bounds = att::case@::row_bounds(context@(p, b, h), q);\n"
               "  out[0] = att::case@::kRowHasBegin ? bounds.begin : 0;\n"
               "  out[1] = att::case@::kRowHasEnd ? bounds.end : p->kv_len;\n"
               "  return att::case@::kRowIsRange;\n"
               "}\n"
               "extern \"C\" bool mask_of_64@(const att::ForwardParams* p, int b, int h, int q, "
               "int "
               "first, int lane, int column) {\n"
               "  const att::TileKey<64, 64, true> key(first, lane, column);\n"
               "  return att::case@::mask(context@(p, b, h), q, key);\n"
               "}\n"
               "extern \"C\" bool mask_of_48@(const att::ForwardParams* p, int b, int h, int q, "
               "int "
               "first, int lane, int column) {\n"
               "  const att::TileKey<16, 48, false> key(first, lane, column);\n"
               "  return att::case@::mask(context@(p, b, h), q, key);\n"
               "}\n"
               "extern \"C\" bool score_line@(const att::ForwardParams* p, int b, int h, int q, "
               "int "
               "k, float* out) {\n"
               "  const auto line = att::case@::score_line(context@(p, b, h), q, k);\n"
               "  out[0] = line.base; out[1] = line.step;\n"
               "  return att::case@::kScoreIsLine;\n"
               "}\n";
           std::string numbered;
           for (const char c : text)
             numbered += c == '@' ? std::to_string(index) : std::string(1, c);
           return numbered;
         }();
}

bool has_floats(const Expr& e) {
  if (e->type == Type::kFloat32) return true;
  for (const Expr& arg : e->args)
    if (has_floats(arg)) return true;
  return false;
}

std::vector<Case> make_cases(std::mt19937& random) {
  std::vector<Case> cases;
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
                           "causal == (kv_idx & 64 == 0)",
                           "causal != document(doc) != (kv_idx > w)",
                           "sin(0.2 * kv_idx) > cos(0.15 * q_idx)",
                           "tan(0.01 * (kv_idx - q_idx)) < 0.2",
                           "pow(kv_idx, 0.7) < q_idx - w",
                           "silu(kv_idx - 99) < gelu(q_idx / 4)",
                           "softplus(kv_idx - 60) < 30 + erf(q_idx - 5)"}) {
    Case c = {.text = text};
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
    Case c = {.text = print(tree, random_environment())};
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
        "sin(score * q_idx) + cos(kv_idx) - tan(0.003 * kv_idx)", "sin(200 * kv_idx) * cos(-q_idx)",
        "erf((kv_idx - q_idx) * 0.02) + gelu(score * h - 0.01 * kv_idx)",
        "silu(kv_idx - 100) - softplus(0.2 * (q_idx - kv_idx))",
        "pow(kv_idx * 0.1, score) + pow(q_idx - 9, 3) + pow(1.1, q_idx - kv_idx)",
        "pow(score - 1, kv_idx % 40) + pow(kv_idx % 3 - 1, q_idx % 7 - 3)"}) {
    Case c = {.text = text};
    auto score = parse(text, random_environment(), Role::kScore, {});
    EXPECT_TRUE(score.ok()) << render(score.error());
    c.expressions.score = *score;
    cases.push_back(std::move(c));
  }
  for (int i = 0; i < kRandomScores; ++i) {
    const Tape numbers = tape();
    Case c;
    c.expressions.score =
        rebuilt(RandomExpression(numbers, {.score = true, .smooth = i % 2 == 0}).real(1 + i % 5));
    c.text = print(c.expressions.score, random_environment());
    cases.push_back(std::move(c));
  }
  return cases;
}

// How many values were compared with the evaluator's, and how many could not be, because a
// comparison, a floor or an overflow may go either way.
struct Judged {
  int compared = 0, open = 0;
};

void check_score(const Case& c, const World& world, const att::ForwardParams& params,
                 Judged& judged) {
  for (int q = 0; q < world.q_len; q += 7) {
    for (int k = 0; k < world.kv_len; k += 11) {
      const auto expected_at = [&](int key) {
        return evaluate_inexact(c.expressions.score, world.point(q, key, 0.75));
      };
      const Inexact expected = expected_at(k);
      const float got = c.functions.score(&params, world.b, world.h, 0.75f, q, k);
      const float of_sums = c.functions.score_of_sums(&params, world.b, world.h, 0.75f, q, k);
      ASSERT_TRUE(of_sums == got || (std::isnan(of_sums) && std::isnan(got))) << c.text;
      const auto where = [&] {
        return c.text + " at " + std::to_string(q) + ", " + std::to_string(k);
      };
      if (std::isinf(expected.error)) {
        ++judged.open;
      } else if (!std::isfinite(expected.value)) {
        ++judged.compared;
        ASSERT_TRUE(std::isnan(expected.value) ? std::isnan(got) : got == expected.value)
            << where() << ": " << got << " for " << expected.value;
      } else {
        ++judged.compared;
        ASSERT_NEAR(got, expected.value, expected.error) << where();
      }
      float line[2];
      if (!c.functions.score_line(&params, world.b, world.h, q, k, line)) continue;
      for (const int column : {0, 1, 9, 56}) {
        if (k + column >= world.kv_len) break;
        const Inexact there = expected_at(k + column);
        if (!std::isfinite(there.value) || std::isinf(there.error)) continue;
        const double of_line = static_cast<double>(line[1]) * column;
        // The line's two numbers are rounded as the score's terms are, the step once for each
        // column.
        const double error =
            there.error + expected.error + 0x1p-22 * (std::abs(line[0]) + std::abs(of_line) + 0.75);
        ASSERT_NEAR(0.75 + line[0] + of_line, there.value, error) << where() << " + " << column;
      }
    }
  }
}

void check_mask(const Case& c, const World& world, const att::ForwardParams& params,
                std::mt19937& random) {
  const auto& f = c.functions;
  const int b = world.b, h = world.h;
  std::vector<char> live(static_cast<std::size_t>(world.q_len * world.kv_len));
  const auto at = [&](int q, int k) -> char& {
    return live[static_cast<std::size_t>(q * world.kv_len + k)];
  };
  for (int q = 0; q < world.q_len; ++q)
    for (int k = 0; k < world.kv_len; ++k) at(q, k) = f.mask(&params, b, h, q, k);
  for (int i = 0; i < 400; ++i) {
    const int q = static_cast<int>(random() % static_cast<unsigned>(world.q_len));
    const int k = static_cast<int>(random() % static_cast<unsigned>(world.kv_len));
    const Inexact expected = evaluate_inexact(c.expressions.mask, world.point(q, k));
    if (expected.error != 0) continue;  // a comparison of floats that may go either way
    ASSERT_EQ(at(q, k) != 0, expected.value != 0) << c.text << " at " << q << ", " << k;
  }
  for (int i = 0; i < 1500; ++i) {
    const int q = static_cast<int>(random() % static_cast<unsigned>(world.q_len));
    const int lane = static_cast<int>(random() % 4) * 2;
    const auto ask = [&](auto function, int keys, bool ragged) {
      const int first = static_cast<int>(random() % 7) * keys;
      const int column = static_cast<int>(random() % static_cast<unsigned>(keys / 8)) * 8 +
                         static_cast<int>(random() % 2);
      if (first + (ragged ? lane + column + 1 : keys) > world.kv_len) return;
      ASSERT_EQ(function(&params, b, h, q, first, lane, column), at(q, first + lane + column) != 0)
          << c.text << " at " << q << ", " << first << " + " << lane << " + " << column;
    };
    ask(f.mask_of_64, 64, false);
    ask(f.mask_of_48, 48, true);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (int q = 0; q < world.q_len; ++q) {
    int row[2];
    if (!f.row_bounds(&params, b, h, q, row)) break;
    for (int k = 0; k < world.kv_len; ++k)
      ASSERT_EQ(at(q, k) != 0, row[0] <= k && k < row[1]) << c.text << " at " << q << ", " << k;
  }
  const auto range = [&](int length, int& begin, int& end) {
    begin = static_cast<int>(random() % static_cast<unsigned>(length));
    end = begin + 1 + static_cast<int>(random() % static_cast<unsigned>(length - begin));
    if (random() % 2) end = std::min(end, begin + 1 + static_cast<int>(random() % 128));
  };
  for (int i = 0; i < 30; ++i) {
    int q0, q1, k0, k1;
    range(world.q_len, q0, q1);
    range(world.kv_len, k0, k1);
    bool any = false, all = true;
    for (int q = q0; q < q1; ++q) {
      for (int k = k0; k < k1; ++k) {
        any |= at(q, k) != 0;
        all &= at(q, k) != 0;
      }
    }
    const int answer = f.classify(&params, b, h, q0, q1, k0, k1);
    ASSERT_TRUE(answer != 0 || !any) << c.text << " skips a live tile";
    ASSERT_TRUE(answer != 2 || all) << c.text << " calls a tile full that is not";
    int keys[2], queries[2];
    f.kv_bounds(&params, b, h, q0, q1, keys);
    f.q_bounds(&params, b, h, k0, k1, queries);
    ASSERT_TRUE(keys[0] >= 0 && keys[0] <= world.kv_len && keys[1] >= 0 && keys[1] <= world.kv_len);
    ASSERT_TRUE(queries[0] >= 0 && queries[0] <= world.q_len && queries[1] >= 0 &&
                queries[1] <= world.q_len);
    for (int q = q0; q < q1; ++q)
      for (int k = 0; k < world.kv_len; ++k)
        ASSERT_TRUE(at(q, k) == 0 || (keys[0] <= k && k < keys[1])) << c.text;
    for (int k = k0; k < k1; ++k)
      for (int q = 0; q < world.q_len; ++q)
        ASSERT_TRUE(at(q, k) == 0 || (queries[0] <= q && q < queries[1])) << c.text;
    if (c.exact && !contains_load(c.expressions.mask)) {
      // The host runs the same program.
      const TileBox box = world.box(q0, q1, k0, k1);
      ASSERT_EQ(static_cast<int>(classify(c.expressions.mask, box)), answer) << c.text;
      const KvBounds bounds = kv_bounds(c.expressions.mask, box);
      ASSERT_EQ(bounds.begin, keys[0]) << c.text;
      ASSERT_EQ(bounds.end, keys[1]) << c.text;
    }
  }
}

class Emitted : public EmittedFunctions {
 protected:
  void* build(const std::vector<Case>& cases, const Environment& environment) {
    std::string text =
        "#include \"templates/tile/block_ranges.cuh\"\n"
        "#include \"templates/tile/half_tensors.cuh\"\n"
        "extern \"C\" void block_range(const att::TensorArg* tensor, int type, int row, int block, "
        "int "
        "length) {\n"
        "  if (type == 0) att::make_pair_of_row<int>(*tensor, row, block, length);\n"
        "  if (type == 1) att::make_pair_of_row<float>(*tensor, row, block, length);\n"
        "  if (type == 2) att::make_pair_of_row<bool>(*tensor, row, block, length);\n"
        "  if (type == 3) att::make_pair_of_row<att::Float16>(*tensor, row, block, length);\n"
        "  if (type == 4) att::make_pair_of_row<att::BFloat16>(*tensor, row, block, length);\n"
        "}\n";
    for (std::size_t i = 0; i < cases.size(); ++i)
      text += support_includes(cases[i].expressions, environment) +
              wrapped(i, emit_functions(cases[i].expressions, environment));
    return EmittedFunctions::build(text);
  }

  void check_all(std::vector<Case> cases, const Environment& environment,
                 const std::function<World()>& make_world, std::mt19937& random, Judged& judged) {
    void* library = build(cases, environment);
    if (!library && !HasFailure()) GTEST_SKIP() << "no C++ compiler to build the emitted text with";
    ASSERT_NE(library, nullptr) << build_error();
    void (*block_range)(const att::TensorArg*, int, int, int, int) = nullptr;
    find(library, "block_range", block_range);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::string number = std::to_string(i);
      find(library, "mask" + number, cases[i].functions.mask);
      find(library, "score" + number, cases[i].functions.score);
      find(library, "score_of_sums" + number, cases[i].functions.score_of_sums);
      find(library, "classify" + number, cases[i].functions.classify);
      find(library, "kv_bounds" + number, cases[i].functions.kv_bounds);
      find(library, "q_bounds" + number, cases[i].functions.q_bounds);
      find(library, "row_bounds" + number, cases[i].functions.row_bounds);
      find(library, "mask_of_64" + number, cases[i].functions.mask_of_64);
      find(library, "mask_of_48" + number, cases[i].functions.mask_of_48);
      find(library, "score_line" + number, cases[i].functions.score_line);
    }
    for (int round = 0; round < 6; ++round) {
      const World world = make_world();
      Launch launch(world, environment);
      if (round > 0)
        launch.make_ranges(block_range);  // round 0: without, answers are coarser but sound
      for (const Case& c : cases) {
        if (c.expressions.score) {
          check_score(c, world, launch.params, judged);
        } else {
          check_mask(c, world, launch.params, random);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(Emitted, AgreesWithTheEvaluatorAndWithItself) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Judged judged;
  check_all(
      make_cases(random), random_environment(),
      [&] {
        Tape numbers(400);
        for (auto& n : numbers) n = static_cast<std::uint32_t>(random());
        return random_world(numbers, 300);
      },
      random, judged);
  EXPECT_GT(judged.compared, 4 * judged.open);
}

// Tensors of 16-bit floats, of one element, of computed sizes, and look-ups by what a look-up gave.
TEST_F(Emitted, ReadsTensorsOfEveryType) {
  const DimSize heads = {.dim = Dim::kHeads}, kv_len = {.dim = Dim::kKvLen};
  const Environment environment = {
      .scalars = random_environment().scalars,
      .tensors = {{.name = "half", .type = TensorType::kFloat16, .dims = {heads, kv_len}},
                  {.name = "brain", .type = TensorType::kBFloat16, .dims = {kv_len}},
                  {.name = "gain", .type = TensorType::kFloat16, .dims = {}},
                  {.name = "first", .type = TensorType::kInt32, .dims = {}},
                  {.name = "next", .type = TensorType::kInt32, .dims = {kv_len}},
                  {.name = "on_all", .type = TensorType::kBool, .dims = {}},
                  {.name = "blocks",
                   .type = TensorType::kInt32,
                   .dims = {{.dim = Dim::kQLen, .offset = 6, .divisor = 7},
                            {.dim = Dim::kKvLen, .divisor = 5}}}}};
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<Case> cases;
  for (const char* text :
       {"half[h, kv_idx] > brain[q_idx]", "half[h, q_idx] * gain < 3 and kv_idx >= first",
        "brain[kv_idx] <= gain or on_all", "kv_idx < next[next[q_idx]] + first",
        "half[h, next[kv_idx]] > -2", "on_all == (first < kv_idx)",
        "blocks[q_idx // 7, kv_idx // 5] < kv_idx", "blocks[kv_idx // 7, kv_idx] < q_idx"}) {
    Case c = {.text = text};
    auto mask = parse(text, environment, Role::kMask, {});
    ASSERT_TRUE(mask.ok()) << render(mask.error());
    c.expressions.mask = *mask;
    c.exact = !has_floats(*mask);
    cases.push_back(std::move(c));
  }
  for (const char* text : {"score * gain + half[h, kv_idx]", "score + brain[kv_idx] * first",
                           "half[h, next[kv_idx]] + brain[next[next[q_idx]]] - score",
                           "score if on_all else gain", "score + blocks[q_idx, kv_idx // 5 - 1]"}) {
    Case c = {.text = text};
    auto score = parse(text, environment, Role::kScore, {});
    ASSERT_TRUE(score.ok()) << render(score.error());
    c.expressions.score = *score;
    cases.push_back(std::move(c));
  }
  const auto make_world = [&] {
    Tape numbers(400);
    for (auto& n : numbers) n = static_cast<std::uint32_t>(random());
    World world = random_world(numbers, 300);
    // Subnormal ones of fp16 among them, and what is not finite.
    constexpr double kHalves[] = {0x1p-24,   -0x1.8p-15, 1.5,
                                  -2.25,     65504,      0,
                                  -0.0,      3,          std::numeric_limits<double>::quiet_NaN(),
                                  0x1.ffcp0, -0x1p-14,   HUGE_VAL,
                                  -3.5};
    const auto tensor = [&](std::vector<std::int64_t> sizes, auto make) {
      std::int64_t count = 1;
      for (const std::int64_t size : sizes) count *= size;
      TensorValues values = {std::move(sizes), {}};
      for (std::int64_t i = 0; i < count; ++i) values.values.push_back(make());
      return values;
    };
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const bool with_nan = below(3) == 0;
    const auto half = [&] {
      const double value = kHalves[below(std::size(kHalves))];
      return std::isnan(value) && (!with_nan || below(9) != 0) ? 1.0 : value;
    };
    const auto brain = [&] { return below(40) == 0 ? HUGE_VAL : (below(255) - 127) * 0x1p-5; };
    const auto index = [&] { return static_cast<double>(below(world.kv_len + 20) - 10); };
    world.tensors = {tensor({world.heads, world.kv_len}, half),
                     tensor({world.kv_len}, brain),
                     tensor({}, half),
                     tensor({}, index),
                     tensor({world.kv_len}, index),
                     tensor({}, [&] { return static_cast<double>(below(2)); }),
                     tensor({(world.q_len + 6) / 7, std::max(world.kv_len / 5, 1)}, index)};
    return world;
  };
  Judged judged;
  check_all(std::move(cases), environment, make_world, random, judged);
  // A launch whose `gain` overflows the score leaves all of that expression open.
  EXPECT_GT(judged.compared, judged.open);
}

}  // namespace
}  // namespace attune::expr
