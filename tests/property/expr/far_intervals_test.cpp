// The mask compiler's answers at positions and lengths up to 2^28, where int32 may wrap, and on
// tensors with the ends of their type: brute force over small tiles, drawn keys over the rest.
#include <gtest/gtest.h>

#include <cstdlib>

#include "generator/expr/intervals.hpp"
#include "generator/expr/mask_programs.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/far_draw.hpp"

namespace attune::expr {
namespace {

constexpr int kMasks = 20000, kTexts = 400;

int cases(int usual) {
  const char* times = std::getenv("ATTUNE_FAR_TIMES");
  return usual * (times == nullptr ? 1 : std::atoi(times));
}

std::string wrong(const Expr& mask, const World& world, FarDraw& draw) {
  int q0, q1, k0, k1;
  draw.range(world.q_len, 6, q0, q1);
  draw.range(world.kv_len, 12, k0, k1);
  const TileBox box = world.box(q0, q1, k0, k1);
  const auto is_live = [&](int q, int k) { return evaluate(mask, world.point(q, k)) != 0; };
  const auto at = [&](const char* what, int q, int k) {
    return std::string(what) + " at " + std::to_string(q) + ", " + std::to_string(k) + " of [" +
           std::to_string(q0) + ", " + std::to_string(q1) + ") x [" + std::to_string(k0) + ", " +
           std::to_string(k1) + ") of " + std::to_string(world.q_len) + " x " +
           std::to_string(world.kv_len) + ", b " + std::to_string(world.b) + ", h " +
           std::to_string(world.h) + ", w " + std::to_string(world.scalars[0]) + ", x " +
           std::to_string(world.scalars[1]) + ": " + print(mask, random_environment());
  };
  const TileClass answer = classify(mask, box);
  for (int q = q0; q < q1; ++q) {
    for (int k = k0; k < k1; ++k) {
      const bool live = is_live(q, k);
      if (live && answer == TileClass::kSkip) return at("a live element of a skipped tile", q, k);
      if (!live && answer == TileClass::kFull) return at("a dead element of a full tile", q, k);
    }
  }
  // Next to the bounds, next to the diagonal, anywhere.
  const auto looked_at = [&](int length, int begin, int end, int other, std::int64_t shift) {
    std::vector<int> places;
    for (const std::int64_t near : {std::int64_t{begin}, std::int64_t{end}, other + shift,
                                    std::int64_t{other}, std::int64_t{length}, std::int64_t{0}}) {
      for (std::int64_t place = near - 2; place < near + 2; ++place)
        if (place >= 0 && place < length) places.push_back(static_cast<int>(place));
    }
    for (int i = 0; i < 8; ++i)
      places.push_back(static_cast<int>(draw.below(static_cast<std::uint64_t>(length))));
    return places;
  };
  const std::int64_t shift = std::int64_t{world.kv_len} - world.q_len;
  const KvBounds keys = kv_bounds(mask, box);
  if (keys.begin < 0 || keys.begin > world.kv_len || keys.end < 0 || keys.end > world.kv_len)
    return at("bounds beyond the keys", keys.begin, keys.end);
  for (const int k : looked_at(world.kv_len, keys.begin, keys.end, q0, shift)) {
    if (k >= keys.begin && k < keys.end) continue;
    for (int q = q0; q < q1; ++q)
      if (is_live(q, k)) return at("a live key outside of kv_bounds", q, k);
  }
  const auto program = q_bounds_program(mask);
  const auto values = run(program->program, box);
  const auto end_of = [&](std::size_t i) {
    return static_cast<int>(values[static_cast<std::size_t>(program->results[i])].integer);
  };
  const int begin = end_of(0), end = end_of(1);
  if (begin < 0 || begin > world.q_len || end < 0 || end > world.q_len)
    return at("bounds beyond the queries", begin, end);
  for (const int q : looked_at(world.q_len, begin, end, k0, -shift)) {
    if (q >= begin && q < end) continue;
    for (int k = k0; k < k1; ++k)
      if (is_live(q, k)) return at("a live query outside of q_bounds", q, k);
  }
  return "";
}

TEST(FarIntervals, AreSound) {
  FarDraw draw(1);
  for (int i = 0; i < cases(kMasks); ++i) {
    const Tape tape = draw.tape(120);
    const Expr mask = rebuilt(
        RandomExpression(tape, {.floats = i % 4 == 0}).boolean(static_cast<int>(draw.below(5))));
    ASSERT_EQ(wrong(mask, draw.world(), draw), "");
  }
}

TEST(FarIntervals, OfMasksAsTheyAreWrittenAreSound) {
  const std::string texts[] = {"causal",
                               "causal_top_left",
                               "sliding_window(w)",
                               "local(w, 3)",
                               "local(3, w)",
                               "sink_window(w, 2)",
                               "prefix_lm(w)",
                               "document(doc)",
                               "padding(lengths)",
                               "dilated(w)",
                               "chunked(w)",
                               "chunked(7)",
                               "global_window(w, 3)",
                               "natten_2d(w, 5)",
                               "window_2d(w, 5)",
                               "natten_2d(64, 7)",
                               "tree(table)",
                               "q_idx * 1000000 < kv_idx * 999983",
                               "q_idx * 1000000 // 1000000 == kv_idx",
                               "q_idx * q_idx > kv_idx * w",
                               "(q_pos - kv_idx) * w < w * 7",
                               "abs(q_idx * w) < kv_idx",
                               "-w - q_idx < kv_idx",
                               "q_idx + w < kv_idx",
                               "q_idx + w - kv_idx < q_idx",
                               "abs(w) < 0",
                               "-w == w and w != 0",
                               "w // -1 < kv_idx",
                               "q_idx // w == kv_idx // w",
                               "q_idx % w == kv_idx % w",
                               "w % q_idx < kv_idx % (w + 1)",
                               "w // kv_idx == w // q_idx",
                               "kv_idx // (q_idx - w) >= 0",
                               "q_idx << 5 < kv_idx << 5",
                               "q_idx << w < kv_idx",
                               "kv_idx >> w == q_idx >> w",
                               "w << kv_idx - q_idx > 3",
                               "1 << kv_idx % 40 - 4 & w != 0",
                               "(q_idx ^ kv_idx) < w",
                               "(q_idx | w) < (kv_idx | w)",
                               "(q_idx & w) == (kv_idx & w)",
                               "doc[b, q_idx] + w > kv_idx",
                               "doc[b, kv_idx] - q_idx < 5",
                               "doc[b, kv_idx] * 3 == doc[b, q_idx]",
                               "kv_idx < lengths[b] + 1",
                               "kv_idx + lengths[b] > q_pos",
                               "abs(lengths[b]) > kv_idx",
                               "lengths[lengths[b]] // 7 != kv_idx",
                               "kv_idx >= lengths[b] and kv_idx < lengths[b] + w",
                               "min(q_idx + w, kv_len) > kv_idx",
                               "max(q_pos - w, w) <= kv_idx",
                               "floor(q_idx * 1e9) > kv_idx",
                               "floor(kv_idx / x) == floor(q_idx / x)",
                               "floor(value[kv_idx] * 1e12) < q_idx",
                               "kv_idx * 1.0 < q_idx + 0.5",
                               "float(kv_idx) == float(q_idx + 1)",
                               "float(q_idx) / w > kv_idx",
                               "(q_pos + 1) // 2 * 2 > kv_idx",
                               "(q_pos - kv_idx) // 64 % 3 == 0",
                               "(q_idx + w) // 9 == (kv_idx + w) // 9",
                               "(q_idx - kv_idx) % 16 < 3"};
  std::uint64_t seed = 0;
  for (const std::string& text : texts) {
    const auto mask = parse(text, random_environment(), Role::kMask, {});
    ASSERT_TRUE(mask.ok()) << text << ": " << render(mask.error());
    FarDraw draw(++seed);
    for (int i = 0; i < cases(kTexts); ++i) ASSERT_EQ(wrong(*mask, draw.world(), draw), "");
  }
}

}  // namespace
}  // namespace attune::expr
