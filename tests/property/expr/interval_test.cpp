// The mask compiler's answers against brute force.
#include <gtest/gtest.h>

#include <algorithm>

#include "generator/expr/intervals.hpp"
#include "generator/expr/mask_programs.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

struct Truths {
  bool any = false, all = true;
};

struct Box {
  int q0, q1, k0, k1;
};

Box box_in(const World& world, std::uint32_t seed) {
  const auto range = [&](int length, int& first, int& end) {
    first = static_cast<int>(seed % static_cast<std::uint32_t>(length));
    seed /= 7;
    end = first + 1 + static_cast<int>(seed % static_cast<std::uint32_t>(length - first));
    seed /= 5;
  };
  Box box;
  range(world.q_len, box.q0, box.q1);
  range(world.kv_len, box.k0, box.k1);
  return box;
}

Truths brute_force(const Expr& mask, const World& world, Box box) {
  Truths truths;
  for (int q = box.q0; q < box.q1; ++q) {
    for (int k = box.k0; k < box.k1; ++k) {
      const bool live = evaluate(mask, world.point(q, k)) != 0;
      truths.any |= live;
      truths.all &= live;
    }
  }
  return truths;
}

void check_sound(const Expr& mask, const World& world, Box box) {
  RC_LOG() << print(mask, random_environment()) << "\nq [" << box.q0 << ", " << box.q1 << ") of "
           << world.q_len << ", k [" << box.k0 << ", " << box.k1 << ") of " << world.kv_len
           << ", b " << world.b << ", h " << world.h << ", w " << world.scalars[0] << '\n';
  const TileBox tile = world.box(box.q0, box.q1, box.k0, box.k1);
  const Truths truths = brute_force(mask, world, box);
  const TileClass answer = classify(mask, tile);
  RC_ASSERT(answer != TileClass::kSkip || !truths.any);
  RC_ASSERT(answer != TileClass::kFull || truths.all);
  const KvBounds bounds = kv_bounds(mask, tile);
  RC_ASSERT(bounds.begin >= 0 && bounds.begin <= world.kv_len);
  RC_ASSERT(bounds.end >= 0 && bounds.end <= world.kv_len);
  for (int q = box.q0; q < box.q1; ++q)
    for (int k = 0; k < world.kv_len; ++k)
      if (k < bounds.begin || k >= bounds.end) RC_ASSERT(evaluate(mask, world.point(q, k)) == 0);
  const auto program = q_bounds_program(mask);
  const auto values = run(program->program, tile);
  const auto end_of = [&](std::size_t i) {
    return values[static_cast<std::size_t>(program->results[i])].integer;
  };
  RC_ASSERT(end_of(0) >= 0 && end_of(0) <= world.q_len && end_of(1) >= 0 &&
            end_of(1) <= world.q_len);
  for (int k = box.k0; k < box.k1; ++k)
    for (int q = 0; q < world.q_len; ++q)
      if (q < end_of(0) || q >= end_of(1)) RC_ASSERT(evaluate(mask, world.point(q, k)) == 0);
}

TEST(Intervals, AreSound) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    const auto where = *rc::gen::inRange<std::uint32_t>(0, 0xffffffffu);
    RandomExpression random(expression, {});
    const World world = random_world(data, 24);
    for (int i = 0; i < 10; ++i)
      check_sound(rebuilt(random.boolean(i / 2)), world, box_in(world, where));
  }));
}

TEST(Intervals, NamedMasksAreSound) {
  const std::string texts[] = {
      "causal", "causal_top_left", "sliding_window(5)", "sliding_window(w)", "local(3, 2)",
      "sink_window(4, 2)", "prefix_lm(6)", "document(doc)", "causal and document(doc)",
      "padding(lengths)", "dilated(3)", "chunked(7)", "chunked(w)", "global_window(2, 3)",
      "block_sparse(table, 4)", "natten_2d(5, 3)", "window_2d(5, 3)", "tree(table)",
      "big_bird(2, 1, table, 4)",
      // Of the library's, those that have no name.
      "causal and (q_idx + kv_len - q_len - kv_idx < w or kv_idx < 2)",
      "kv_idx < 9 or q_idx >= kv_idx",
      "abs(q_idx // 6 - kv_idx // 6) <= 1 or kv_idx < 3 or q_idx < 3",
      "abs(q_idx // 5 - kv_idx // 5) <= 2 and "
      "abs(q_idx % 5 - kv_idx % 5) <= 2",
      // Bits.
      "(q_idx & 5) == (kv_idx & 12)", "(kv_idx ^ q_idx) < 8", "(q_idx | 4) >= (kv_idx | w)",
      "kv_idx >> (q_idx & 3) <= h", "doc[b, kv_idx] >> kv_idx & 1 == 1", "w << kv_idx > q_idx",
      "(q_idx - 9 & kv_idx - w) < -3", "(q_idx - 9 | kv_idx - w) > -3",
      "(q_idx - 9 ^ kv_idx - 7) == -2",
      // Equality of bools.
      "causal == (kv_idx < 5)", "(kv_idx < 4) != (q_idx < 9)",
      "causal != (document(doc) == (kv_idx > w))",
      // Functions that do not simply grow.
      "sin(0.2 * kv_idx) > cos(0.15 * q_idx)", "abs(sin((kv_idx - q_idx) / 7)) < 0.6",
      "tan(0.05 * (kv_idx - q_idx)) < 0.2", "pow(kv_idx, 0.7) < q_idx - w",
      "pow(1 + kv_idx, x / 4) < pow(q_idx, 1.5)",
      "pow(kv_idx - 3, 3) < 40 * q_idx and pow(kv_idx - 8, 0.3) < 2",
      "silu(kv_idx - 9) < gelu(q_idx / 4)", "softplus(kv_idx - 6) < 3 + erf(q_idx - 5)"};
  for (const std::string& text : texts) {
    const auto mask = parse(text, random_environment(), Role::kMask, {});
    ASSERT_TRUE(mask.ok()) << render(mask.error());
    EXPECT_TRUE(rc::check(text, [&] {
      const Tape data = *any_tape();
      const auto where = *rc::gen::inRange<std::uint32_t>(0, 0xffffffffu);
      const World world = random_world(data, 30);
      check_sound(*mask, world, box_in(world, where));
    }));
  }
}

TEST(Intervals, AreExactOnAffineOrder) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    const auto where = *rc::gen::inRange<std::uint32_t>(0, 0xffffffffu);
    const Expr mask = RandomExpression(expression, {}).affine_order(/*with_key=*/true);
    const World world = random_world(data, 24);
    const Box box = box_in(world, where);
    const Truths truths = brute_force(mask, world, box);
    const TileBox tile = world.box(box.q0, box.q1, box.k0, box.k1);
    const TileClass expected = !truths.any  ? TileClass::kSkip
                               : truths.all ? TileClass::kFull
                                            : TileClass::kPartial;
    RC_ASSERT(classify(mask, tile) == expected);
    int first = world.kv_len, end = 0;
    for (int q = box.q0; q < box.q1; ++q) {
      for (int k = 0; k < world.kv_len; ++k) {
        if (evaluate(mask, world.point(q, k)) == 0) continue;
        first = std::min(first, k);
        end = std::max(end, k + 1);
      }
    }
    const KvBounds bounds = kv_bounds(mask, tile);
    if (first >= end) {
      RC_ASSERT(bounds.begin >= bounds.end);
    } else {
      RC_ASSERT(bounds.begin == first);
      RC_ASSERT(bounds.end == end);
    }
  }));
}

// What a kernel's speed rests on: these answers are not merely sound.
TEST(Intervals, AreTightWhereItMatters) {
  World world = random_world({}, 8);
  world.q_len = world.kv_len = 4096;
  world.tensors[0] = {{2, 4096}, {}};
  for (int i = 0; i < 2 * 4096; ++i) world.tensors[0].values.push_back(i % 4096 / 1024);
  struct Row {
    std::string_view mask;
    Box box;
    TileClass expected;
    int begin, end;
  };
  const Row rows[] = {
      {"causal", {128, 256, 0, 128}, TileClass::kFull, 0, 256},
      {"causal", {128, 256, 128, 256}, TileClass::kPartial, 0, 256},
      {"causal", {128, 256, 256, 384}, TileClass::kSkip, 0, 256},
      {"sliding_window(512)", {1024, 1152, 0, 512}, TileClass::kSkip, 513, 1152},
      {"sliding_window(512)", {1024, 1152, 640, 768}, TileClass::kFull, 513, 1152},
      {"prefix_lm(300)", {0, 128, 128, 256}, TileClass::kFull, 0, 300},
      {"document(doc)", {1024, 1152, 1152, 1280}, TileClass::kFull, 0, 4096},
      {"document(doc)", {1024, 1152, 2048, 2176}, TileClass::kSkip, 0, 4096},
      {"document(doc)", {960, 1088, 960, 1088}, TileClass::kPartial, 0, 4096},
      {"chunked(1024)", {1152, 1280, 1024, 1152}, TileClass::kFull, 1024, 1280},
      {"chunked(1024)", {1152, 1280, 896, 1024}, TileClass::kSkip, 1024, 1280},
      {"sink_window(256, 4)", {2048, 2176, 4, 128}, TileClass::kSkip, 0, 2176},
      {"global_window(128, 64)", {1024, 1152, 0, 64}, TileClass::kFull, 0, 1280},
      {"window_2d(64, 7)", {1024, 1088, 64, 128}, TileClass::kSkip, 832, 1280},
      {"natten_2d(64, 7)", {0, 64, 448, 512}, TileClass::kSkip, 0, 448},
      {"natten_2d(64, 7)", {1024, 1088, 64, 128}, TileClass::kSkip, 832, 1280},
      {"abs(q_idx - kv_idx) < 100", {1000, 1010, 0, 900}, TileClass::kSkip, 901, 1109},
      {"kv_idx < 100 if h < 100 else causal", {128, 256, 100, 256}, TileClass::kSkip, 0, 100},
  };
  for (const Row& row : rows) {
    const auto mask = parse(row.mask, random_environment(), Role::kMask, {});
    ASSERT_TRUE(mask.ok()) << render(mask.error());
    const TileBox box = world.box(row.box.q0, row.box.q1, row.box.k0, row.box.k1);
    EXPECT_EQ(classify(*mask, box), row.expected) << row.mask;
    EXPECT_EQ(kv_bounds(*mask, box).begin, row.begin) << row.mask;
    EXPECT_EQ(kv_bounds(*mask, box).end, row.end) << row.mask;
  }
}

TEST(Intervals, RangeSlots) {
  struct Row {
    std::string_view mask;
    std::vector<int> slots;
  };
  const Row rows[] = {{"causal", {}},
                      {"document(doc)", {0}},
                      {"padding(lengths)", {}},
                      {"block_sparse(table, 64)", {}},
                      {"value[kv_idx] > 0.5 and document(doc)", {0, 2}},
                      {"flag[h, q_idx]", {4}}};
  for (const Row& row : rows) {
    const auto mask = parse(row.mask, random_environment(), Role::kMask, {});
    ASSERT_TRUE(mask.ok()) << render(mask.error());
    EXPECT_EQ(range_slots(*mask), row.slots) << row.mask;
  }
  EXPECT_TRUE(range_slots(nullptr).empty());
}

}  // namespace
}  // namespace attune::expr
