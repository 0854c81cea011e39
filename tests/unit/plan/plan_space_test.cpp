// The quick choice is the one that costing every plan would make.
#include "generator/plan/plan_space.hpp"

#include <gtest/gtest.h>

#include "generator/expr/live_tiles.hpp"
#include "generator/spec/library.hpp"
#include "generator/spec/residues.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

// A random but repeatable variety: every relation of lengths, few and many items.
std::vector<ProblemShape> shapes() {
  std::vector<ProblemShape> made;
  std::uint64_t state = 1;
  const auto below = [&](std::uint64_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state >> 33) % limit);
  };
  for (int i = 0; i < 12; ++i) {
    ProblemShape shape{.batch = 1 + below(9), .kv_heads = 1 + below(8)};
    shape.heads = shape.kv_heads * (1 + below(4));
    shape.q_len = 1 + below(std::uint64_t{1} << (1 + below(14)));
    shape.kv_len = i % 3 == 0 ? shape.q_len : 1 + below(std::uint64_t{1} << (1 + below(15)));
    made.push_back(shape);
  }
  // Last tiles of one row and one key.
  for (const std::int64_t q_len : {64, 129})
    made.push_back({.batch = 2, .heads = 32, .kv_heads = 8, .q_len = q_len, .kv_len = 129});
  return made;
}

class PlanSpaceOf : public testing::TestWithParam<LibrarySpec> {};

TEST_P(PlanSpaceOf, ChoosesWhatCostsLeast) {
  const auto spec = parse_spec(GetParam().text, GetParam().path);
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  for (const Target target : {Target::kSm90a, Target::kSm80, Target::kCpu}) {
    const DeviceFacts device = device_facts(target);
    const PlanSpace space(*spec, device);
    for (const ProblemShape& shape : shapes()) {
      const auto plan = space.best(shape, {});
      ASSERT_TRUE(plan.has_value());
      // Of those that work out no runs, which are not its to choose.
      auto all = plans_by_cost(*spec, shape, device);
      ASSERT_TRUE(all.ok());
      std::erase_if(*all, [](const KernelPlan& plan) { return plan.by_runs; });
      EXPECT_EQ(to_string(*plan), to_string(all->front())) << to_string(shape);
      const auto any_strides = space.best(shape, {.any_strides = true});
      const auto takes_any = [](const KernelPlan& one) {
        return family_operations(one)->takes_any_strides;
      };
      ASSERT_TRUE(any_strides.has_value());
      EXPECT_EQ(*any_strides, *std::ranges::find_if(*all, takes_any)) << to_string(shape);
      auto backward = plans_by_cost(*spec, shape, device, Pass::kBackward);
      if (backward.ok())
        std::erase_if(*backward, [](const KernelPlan& plan) { return plan.by_runs; });
      const auto chosen = space.best(typical_shape(*spec, shape), {.pass = Pass::kBackward});
      ASSERT_EQ(chosen.has_value(), backward.ok());
      if (!chosen) continue;
      EXPECT_EQ(to_string(*chosen), to_string(backward->front())) << to_string(shape);
    }
  }
}

std::string name_of(const testing::TestParamInfo<LibrarySpec>& info) {
  std::string name(info.param.name);
  std::ranges::replace_if(name, [](char c) { return !std::isalnum(c); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Library, PlanSpaceOf, testing::ValuesIn(spec_library()), name_of);

TEST(PlanSpace, IsKeptForASpecAndADevice) {
  const auto parse = [](const char* mask) {
    return *parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: ") + mask,
                       "");
  };
  const AttentionSpec one = parse("causal"), other = parse("sliding_window(100)");
  const DeviceFacts hopper = device_facts(Target::kSm90a), ampere = device_facts(Target::kSm80);
  const auto space = plan_space(one, hopper);
  EXPECT_EQ(plan_space(one, hopper), space);
  EXPECT_NE(plan_space(other, hopper), space);
  EXPECT_NE(plan_space(one, ampere), space);
  AttentionSpec wider = one;
  wider.head_dim_v = 128;
  EXPECT_NE(plan_space(wider, hopper), space);
  AttentionSpec rounded = one;
  rounded.precision = Precision::kTf32;
  EXPECT_NE(plan_space(rounded, hopper), space);
  AttentionSpec strict = one;
  strict.accuracy = Accuracy::kStrict;
  EXPECT_NE(plan_space(strict, hopper), space);
  // Of this mask nothing is left within a residue.
  const AttentionSpec residue = residue_spec(parse("(q_idx - kv_idx) % 4 == 0"));
  ASSERT_EQ(residue.mask, nullptr);
  AttentionSpec whole = residue;
  whole.residues = 1;
  EXPECT_NE(plan_space(whole, hopper), plan_space(residue, hopper));
  EXPECT_EQ(plan_space(one, hopper), space);
}

TEST(PlanSpace, KnowsWhatIsLearned) {
  const auto parse = [](const char* grad) {
    return *parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n"
                                   "tensors: {slope: {dtype: float32, dims: [heads]") +
                           grad + "}}\nscore: score + slope[h] * kv_idx\n",
                       "");
  };
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const AttentionSpec fixed = parse(""), learned = parse(", grad: true");
  EXPECT_NE(plan_space(fixed, hopper), plan_space(learned, hopper));
}

// A search that is repeated in another process asks for the same candidates.
TEST(PlansByCost, OfAProcessorDoNotFollowTheNoiseOfItsRates) {
  const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal", "");
  ASSERT_TRUE(spec.ok());
  DeviceFacts calm = device_facts(Target::kCpu);
  calm.registers_per_processor = 32;  // AVX-512, with many more plans
  calm.processor_count = 2;
  calm.matrix_tflops *= 4;
  const auto order = [&](const DeviceFacts& device, const ProblemShape& shape) {
    std::vector<std::string> texts;
    const auto plans = plans_by_cost(*spec, shape, device);
    for (const KernelPlan& plan : *plans) texts.push_back(to_string(plan));
    return texts;
  };
  const ProblemShape short_one{.heads = 2, .kv_heads = 2, .q_len = 64, .kv_len = 64};
  const ProblemShape long_one{.heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 3000};
  for (const ProblemShape& shape : {short_one, long_one}) {
    const std::vector<std::string> expected = order(calm, shape);
    for (const double clock : {0.8, 0.93, 1.04}) {
      for (const double rate : {0.7, 0.91, 1.06}) {
        DeviceFacts busy = calm;
        busy.clock_ghz *= clock;
        busy.matrix_tflops *= clock * rate;
        busy.memory_gb_per_s *= rate;
        EXPECT_EQ(order(busy, shape), expected) << clock << " " << rate;
      }
    }
  }
}

// The counter's shortcuts change no answer.
TEST(LiveTileCounter, CountsWhatTheClassifierCallsLive) {
  for (const LibrarySpec& library : spec_library()) {
    const auto spec = parse_spec(library.text, library.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    std::vector<double> scalars;
    for (const expr::ScalarDecl& scalar : spec->environment.scalars)
      scalars.push_back(scalar.value);
    if (!spec->mask) continue;
    const expr::LiveTileCounter counter(spec->mask);
    const expr::TileClassifier classify(spec->mask);
    for (const ProblemShape& shape : shapes()) {
      expr::TileBox box;
      box.q_len = static_cast<std::int32_t>(shape.q_len);
      box.kv_len = static_cast<std::int32_t>(shape.kv_len);
      box.scalars = scalars;
      std::vector<expr::Positions> rows, columns;
      for (int i = 0; i < 7; ++i) rows.push_back({box.q_len * i / 7, box.q_len * (i + 1) / 7});
      for (int i = 0; i < 21; ++i)
        columns.push_back({box.kv_len * i / 21, box.kv_len * (i + 1) / 21});
      const auto is_empty = [](const expr::Positions& p) { return p.begin >= p.end; };
      std::erase_if(rows, is_empty);
      std::erase_if(columns, is_empty);
      std::vector<expr::TileCounts> expected;
      for (const expr::Positions& row : rows) {
        box.q0 = row.begin;
        box.q1 = row.end;
        expr::TileCounts count;
        for (const expr::Positions& column : columns) {
          box.k0 = column.begin;
          box.k1 = column.end;
          const expr::TileClass tile = classify(box);
          count.live += tile != expr::TileClass::kSkip ? 1 : 0;
          count.full += tile == expr::TileClass::kFull ? 1 : 0;
        }
        expected.push_back(count);
      }
      EXPECT_TRUE(counter(box, rows, columns) == expected) << library.name << to_string(shape);
    }
  }
}

}  // namespace
}  // namespace attune
