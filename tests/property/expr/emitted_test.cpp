// Emitted functions against the evaluator and against each other, at random points and tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "generator/expr/inexact.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/emitted_cases.hpp"
#include "tests/property/expr/emitted_functions.hpp"
#include "tests/property/expr/far_draw.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

// How many values were compared with the evaluator's, and how many could not be, because a
// comparison, a floor or an overflow may go either way.
struct Judged {
  int compared = 0, open = 0;
};

void check_score(const EmittedCase& c, const World& world, const att::ForwardParams& params,
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

void check_mask(const EmittedCase& c, const World& world, const att::ForwardParams& params,
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

// Where int32 wraps: the text against the evaluator and the host's run of the same program. Tensors
// are not that long.
void check_far(const EmittedCase& c, const Environment& environment, FarDraw& draw) {
  if (!c.exact || contains_load(c.expressions.mask)) return;
  for (int i = 0; i < 200; ++i) {
    const World world = draw.world();
    const Launch launch(world, environment);
    int q0, q1, k0, k1;
    draw.range(world.q_len, 200, q0, q1);
    draw.range(world.kv_len, 200, k0, k1);
    const auto where = [&] {
      return c.text + " in [" + std::to_string(q0) + ", " + std::to_string(q1) + ") x [" +
             std::to_string(k0) + ", " + std::to_string(k1) + ") of " +
             std::to_string(world.q_len) + " x " + std::to_string(world.kv_len) + ", w " +
             std::to_string(world.scalars[0]);
    };
    for (const auto& [q, k] : {std::pair{q0, k0}, {q1 - 1, k0}, {q0, k1 - 1}, {q1 - 1, k1 - 1}})
      ASSERT_EQ(c.functions.mask(&launch.params, world.b, world.h, q, k),
                evaluate(c.expressions.mask, world.point(q, k)) != 0)
          << where();
    const TileBox box = world.box(q0, q1, k0, k1);
    ASSERT_EQ(c.functions.classify(&launch.params, world.b, world.h, q0, q1, k0, k1),
              static_cast<int>(classify(c.expressions.mask, box)))
        << where();
    int keys[2];
    c.functions.kv_bounds(&launch.params, world.b, world.h, q0, q1, keys);
    const KvBounds bounds = kv_bounds(c.expressions.mask, box);
    ASSERT_TRUE(keys[0] == bounds.begin && keys[1] == bounds.end) << where();
    int row[2];
    if (!c.functions.row_bounds(&launch.params, world.b, world.h, q0, row)) continue;
    for (const int k : {k0, k1 - 1, row[0] - 1, row[0], row[1] - 1, row[1]}) {
      if (k < 0 || k >= world.kv_len) continue;
      ASSERT_EQ(row[0] <= k && k < row[1], evaluate(c.expressions.mask, world.point(q0, k)) != 0)
          << where() << ", key " << k;
    }
  }
}

class Emitted : public EmittedFunctions {
 protected:
  void check_all(std::vector<EmittedCase> cases, const Environment& environment,
                 const std::function<World()>& make_world, std::mt19937& random, Judged& judged) {
    void* library = build(source_of(cases, environment));
    if (!library && !HasFailure()) GTEST_SKIP() << "no C++ compiler to build the emitted text with";
    ASSERT_NE(library, nullptr) << build_error();
    void (*block_range)(const att::TensorArg*, int, int, int, int) = nullptr;
    find(library, "block_range", block_range);
    for (std::size_t i = 0; i < cases.size(); ++i) find_functions(library, i, cases[i]);
    for (int round = 0; round < 6; ++round) {
      const World world = make_world();
      Launch launch(world, environment);
      if (round > 0)
        launch.make_ranges(block_range);  // round 0: without, answers are coarser but sound
      for (const EmittedCase& c : cases) {
        if (c.expressions.score) {
          check_score(c, world, launch.params, judged);
        } else {
          check_mask(c, world, launch.params, random);
        }
        if (HasFatalFailure()) return;
      }
    }
    FarDraw draw(random());
    for (const EmittedCase& c : cases) {
      if (c.expressions.mask) check_far(c, environment, draw);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(Emitted, AgreesWithTheEvaluatorAndWithItself) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Judged judged;
  check_all(
      emitted_cases(random), random_environment(),
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
  std::vector<EmittedCase> cases;
  for (const char* text :
       {"half[h, kv_idx] > brain[q_idx]", "half[h, q_idx] * gain < 3 and kv_idx >= first",
        "brain[kv_idx] <= gain or on_all", "kv_idx < next[next[q_idx]] + first",
        "half[h, next[kv_idx]] > -2", "on_all == (first < kv_idx)",
        "blocks[q_idx // 7, kv_idx // 5] < kv_idx", "blocks[kv_idx // 7, kv_idx] < q_idx"}) {
    EmittedCase c = {.text = text};
    auto mask = parse(text, environment, Role::kMask, {});
    ASSERT_TRUE(mask.ok()) << render(mask.error());
    c.expressions.mask = *mask;
    c.exact = !has_floats(*mask);
    cases.push_back(std::move(c));
  }
  for (const char* text : {"score * gain + half[h, kv_idx]", "score + brain[kv_idx] * first",
                           "half[h, next[kv_idx]] + brain[next[next[q_idx]]] - score",
                           "score if on_all else gain", "score + blocks[q_idx, kv_idx // 5 - 1]"}) {
    EmittedCase c = {.text = text};
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
