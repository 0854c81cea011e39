// The same plan for pages of any size.
#include "generator/plan/any_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "generator/plan/launch.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

const DeviceFacts kHopper = device_facts(Target::kSm90a);

AttentionSpec spec_with(const std::string& lines) {
  return parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n" + lines, "").value();
}

KernelPlan plan_of(const std::string& text) { return parse_plan(text).value(); }

const std::string kBoxes = "sm90a forward sm_90a w2 k128 s2 b2 qreg c1 longest g16 frozen tma";

TEST(AnyPages, RowsAreCopiedAndTheTileStays) {
  const AttentionSpec spec = spec_with("layout: paged\nmask: causal\n");
  const KernelPlan boxes = plan_of(kBoxes);
  const auto rows = plan_for_any_pages(spec, boxes, kHopper);
  ASSERT_TRUE(rows.has_value());
  EXPECT_EQ(to_string(*rows), kBoxes + " rows");
  EXPECT_EQ(plan_of(to_string(*rows)), *rows);
  EXPECT_NE(*rows, boxes);
  EXPECT_EQ(resources(spec, *rows).shared_memory_bytes, resources(spec, boxes).shared_memory_bytes);
}

TEST(AnyPages, PagesNeedNoMaps) {
  using Tensor = TensorMapRecipe::Tensor;
  const AttentionSpec spec = spec_with("layout: paged\nmask: causal\n");
  const auto maps_of = [&](Tensor tensor, const KernelPlan& plan) {
    std::ptrdiff_t count = 0;
    for (const Launch& launch : launch_recipe(spec, plan).launches)
      count += std::ranges::count(launch.tensor_maps, tensor, &TensorMapRecipe::tensor);
    return count;
  };
  const KernelPlan boxes = plan_of(kBoxes);
  const KernelPlan rows = plan_for_any_pages(spec, boxes, kHopper).value();
  const KernelPlan of_values = plan_for_small_boxes(spec, boxes, kHopper).value();
  for (const Tensor tensor : {Tensor::kKey, Tensor::kValue}) {
    EXPECT_EQ(maps_of(tensor, boxes), 1);
    EXPECT_EQ(maps_of(tensor, rows), 0);
    EXPECT_EQ(maps_of(tensor, of_values), tensor == Tensor::kKey ? 1 : 0);
  }
}

TEST(AnyPages, OtherPlansHaveNone) {
  const AttentionSpec paged = spec_with("layout: paged\nmask: causal\n");
  EXPECT_FALSE(plan_for_any_pages(spec_with("layout: thd\n"), plan_of(kBoxes), kHopper));
  EXPECT_FALSE(plan_for_any_pages(paged, plan_of(kBoxes + " rows"), kHopper));
  EXPECT_FALSE(
      plan_for_any_pages(paged, plan_of("decode forward sm_90a q16 k16 s3 w4 p16"), kHopper));
  const KernelPlan fixed = plan_of("sm90a forward sm_90a w2 k64 s2 b1 c1 longest g16");
  EXPECT_FALSE(
      plan_for_any_pages(spec_with("layout: paged\nbatch_invariant: true\n"), fixed, kHopper));
  EXPECT_FALSE(check_plan(spec_with(""), plan_of(kBoxes + " rows"), kHopper).ok());
}

// Boxes of 16 rows take long above head dim 64, of whatever pages they are.
TEST(AnyPages, SmallBoxesAreOfKeysAlone) {
  const AttentionSpec paged = spec_with("layout: paged\nmask: causal\n");
  const KernelPlan wide = plan_of(kBoxes),
                   narrow = plan_of("sm90a forward sm_90a w2 k80 s2 b1 c1 longest g16 frozen tma");
  for (const int size : {16, 48}) EXPECT_TRUE(has_small_boxes(wide, size));
  for (const int size : {1, 8, 17, 32, 64}) EXPECT_FALSE(has_small_boxes(wide, size));
  for (const int size : {16, 64}) EXPECT_TRUE(has_small_boxes(narrow, size));
  const auto of_values = plan_for_small_boxes(paged, wide, kHopper);
  ASSERT_TRUE(of_values.has_value());
  EXPECT_EQ(to_string(*of_values), kBoxes + " vrows");
  EXPECT_EQ(plan_of(to_string(*of_values)), *of_values);
  EXPECT_EQ(plan_for_pages(paged, 16, wide, kHopper), *of_values);
  EXPECT_EQ(plan_for_pages(paged, 64, *of_values, kHopper), wide);
  EXPECT_EQ(plan_for_boxes(paged, *of_values, kHopper), wide);
  EXPECT_FALSE(plan_for_small_boxes(paged, *of_values, kHopper));
  AttentionSpec small_head = paged;
  small_head.head_dim_qk = small_head.head_dim_v = 64;
  EXPECT_FALSE(plan_for_small_boxes(small_head, wide, kHopper));
  EXPECT_FALSE(plan_for_small_boxes(spec_with("layout: thd\n"), wide, kHopper));
  EXPECT_FALSE(
      plan_for_small_boxes(spec_with("layout: paged\nscore: 30 * tanh(score / 30)\n"), wide, kHopper));
}

// A winner of small pages serves large ones by boxes.
TEST(AnyPages, EachHasATwinForTheOtherPages) {
  const AttentionSpec paged = spec_with("layout: paged\nmask: causal\n");
  const KernelPlan boxes = plan_of(kBoxes), rows = plan_of(kBoxes + " rows");
  const KernelPlan decode = plan_of("decode forward sm_90a q16 k16 s3 w4 p16");
  EXPECT_EQ(plan_for_boxes(paged, rows, kHopper), boxes);
  for (const KernelPlan& plan : {boxes, rows}) {
    EXPECT_EQ(plan_for_pages(paged, 8, plan, kHopper), rows);
    EXPECT_EQ(plan_for_pages(paged, 64, plan, kHopper), boxes);
  }
  EXPECT_EQ(plan_for_pages(paged, 8, decode, kHopper), decode);
  EXPECT_EQ(plan_for_pages(spec_with("layout: thd\n"), 8, boxes, kHopper), boxes);
}

// What a tuner races is what launches take: boxes where pages have them, and else rows.
TEST(AnyPages, TunersListWhatPagesAreReadBy) {
  const KernelPlan boxes = plan_of(kBoxes), rows = plan_of(kBoxes + " rows");
  const KernelPlan decode = plan_of("decode forward sm_90a q16 k16 s3 w4 p16");
  const auto listed = [&](const std::string& lines, int page_size) {
    return plans_for_pages(spec_with(lines), page_size, {boxes, decode}, kHopper);
  };
  for (const int size : {1, 2, 8, 17, 24})
    EXPECT_EQ(listed("layout: paged\n", size), (std::vector{rows, decode})) << size;
  const KernelPlan of_values = plan_of(kBoxes + " vrows");
  for (const int size : {16, 48})
    EXPECT_EQ(listed("layout: paged\n", size), (std::vector{of_values, decode})) << size;
  for (const int size : {32, 64})
    EXPECT_EQ(listed("layout: paged\n", size), (std::vector{boxes, decode})) << size;
  EXPECT_EQ(listed("layout: thd\n", 1), (std::vector{boxes, decode}));
  EXPECT_EQ(listed("layout: paged\nbatch_invariant: true\n", 1), (std::vector{decode}));
}

}  // namespace
}  // namespace attune
