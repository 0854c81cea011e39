// The two families of Hopper's backward pass: which plans are legal, and which the cost model
// takes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "generator/plan/plan.hpp"
#include "generator/plan/sm90a_backward.hpp"
#include "generator/spec/spec.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

// What blocks add to in the order in which they come is not the same to the bit at every launch.
// CTAs take turns at sums that they share: two more barriers each of three, and where they are.
TEST(HopperBackwardPlan, DeterministicBackwardPlansAddUpInTurns) {
  using Content = WorkspaceRegion::Content;
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  AttentionSpec spec = plain_spec(128);
  const KernelPlan plan = parse_plan("sm90a backward sm_90a w2 q64 s2").value();
  const auto has_turns = [&] {
    const auto regions = launch_recipe(spec, plan).workspace;
    return std::ranges::find(regions, Content::kSumTurns, &WorkspaceRegion::content) !=
           regions.end();
  };
  const int without = launch_recipe(spec, plan).launches[1].shared_memory_bytes;
  const auto forward = legal_plans(spec, Family::kSm90a, hopper);
  EXPECT_FALSE(has_turns());
  spec.deterministic = true;
  EXPECT_EQ(legal_plans(spec, Family::kSm90a, hopper), forward) << "the forward pass is anyway";
  EXPECT_TRUE(check_plan(spec, plan, hopper).ok());
  EXPECT_TRUE(has_turns());
  // Instead of the rows that the same warps make, and of their barriers.
  const int staged_rows = 3 * (2 * 32 * 2 * spec.head_dim_v + 8);
  EXPECT_EQ(launch_recipe(spec, plan).launches[1].shared_memory_bytes,
            without - staged_rows + 6 * 8 + 16);
  const auto rotated = parse_plan("sm90a backward sm_90a w2 q64 s2 rot").value();
  EXPECT_FALSE(check_plan(spec, rotated, hopper).ok()) << "all begin with the first query tile";
}

// Without a mask wide heads have query tiles of 80, but where P may be rounded before dS is made of
// it.
TEST(HopperBackwardPlan, WideHeadsWithoutAMaskHaveTallTilesUnlessPMayBeRounded) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  AttentionSpec spec = plain_spec(128);
  const auto tile_q = [&] {
    const ProblemShape shape{
        .batch = 4, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
    const KernelPlan plan = default_plan(spec, shape, hopper, Pass::kBackward).value();
    return std::get<Sm90aBackwardPlan>(plan.tile).tile_q;
  };
  EXPECT_EQ(tile_q(), 80);
  spec.accuracy = Accuracy::kRelaxed;
  EXPECT_EQ(tile_q(), 64);
  spec.dtype = DType::kF16;
  EXPECT_EQ(tile_q(), 80);
}

TEST(HopperBackwardPlan, MasksThatLookUpOrDivideAreNotShort) {
  const auto is_short = [](const std::string& lines) {
    const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n" + lines, "t");
    EXPECT_TRUE(spec.ok()) << lines;
    return spec.ok() && sm90a_backward::has_short_mask(*spec);
  };
  EXPECT_TRUE(is_short(""));
  EXPECT_TRUE(is_short("mask: causal and (q_idx - kv_idx < 1024 or kv_idx < 4)\n"));
  EXPECT_FALSE(is_short("mask: abs(q_idx // 64 - kv_idx // 64) <= 6\n"));
  EXPECT_FALSE(is_short("mask: causal and q_idx % 7 < 3\n"));
  EXPECT_FALSE(
      is_short("tensors:\n  doc: {dtype: int32, dims: [batch, kv_len]}\n"
               "mask: doc[b, q_idx] == doc[b, kv_idx]\n"));
}

// Where heads are short, starting a CTA for each key tile costs more than taking them off a
// counter.
TEST(HopperBackwardPlan, ShortNarrowHeadsTakeKeyTilesOffACounter) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const auto takes_items = [&](const AttentionSpec& spec, std::int64_t length) {
    const ProblemShape shape{
        .batch = 16384 / length, .heads = 32, .kv_heads = 32, .q_len = length, .kv_len = length};
    const KernelPlan plan = default_plan(spec, shape, hopper, Pass::kBackward).value();
    return std::get<Sm90aBackwardPlan>(plan.tile).takes_items;
  };
  EXPECT_TRUE(takes_items(plain_spec(64), 1024));
  EXPECT_FALSE(takes_items(plain_spec(64), 16384));
  EXPECT_FALSE(takes_items(plain_spec(128), 1024));
  const KernelPlan plan = parse_plan("sm90a backward sm_90a w2 q64 s2 counter").value();
  EXPECT_TRUE(check_plan(plain_spec(64), plan, hopper).ok());
  EXPECT_FALSE(check_plan(plain_spec(128), plan, hopper).ok());
  // Under a mask wide heads may, whose keys a warp of its own loads.
  AttentionSpec causal = plain_spec(128);
  causal.mask =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml")->mask;
  EXPECT_TRUE(check_plan(causal, plan, hopper).ok());
  EXPECT_TRUE(takes_items(causal, 1024));
  EXPECT_FALSE(takes_items(causal, 16384));
  AttentionSpec spec = plain_spec(64);
  spec.deterministic = true;
  EXPECT_FALSE(check_plan(spec, plan, hopper).ok());
  EXPECT_FALSE(takes_items(spec, 1024));
}

// Of narrow heads that is a plan's choice: under a mask, where some items or all are short.
TEST(HopperBackwardPlan, NarrowHeadsKeysAreLoadedApartWhereItemsAreShort) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const auto spec_of = [](int head_dim, std::string_view mask) {
    return parse_spec(
               fmt::format("attune: 1\nname: t\ndtype: bf16\nhead_dim: {}\n{}", head_dim, mask),
               "t.yaml")
        .value();
  };
  const KernelPlan apart = parse_plan("sm90a backward sm_90a w2 q64 s3 kreg counter apart").value();
  EXPECT_EQ(to_string(apart), "sm90a backward sm_90a w2 q64 s3 kreg counter apart");
  EXPECT_TRUE(check_plan(plain_spec(64), apart, hopper).ok());
  const KernelPlan alone = parse_plan("sm90a backward sm_90a w2 q64 s3 apart").value();
  EXPECT_FALSE(check_plan(plain_spec(64), alone, hopper).ok());
  const KernelPlan wide = parse_plan("sm90a backward sm_90a w2 q64 s2 counter apart").value();
  EXPECT_FALSE(check_plan(spec_of(128, "mask: causal\n"), wide, hopper).ok());
  const auto is_apart = [&](int head_dim, std::int64_t length, std::string_view mask) {
    const ProblemShape shape{
        .batch = 16384 / length, .heads = 32, .kv_heads = 32, .q_len = length, .kv_len = length};
    const KernelPlan plan =
        default_plan(spec_of(head_dim, mask), shape, hopper, Pass::kBackward).value();
    const Sm90aBackwardPlan& tile = std::get<Sm90aBackwardPlan>(plan.tile);
    return head_dim > 64 ? tile.takes_items : tile.keys_apart;
  };
  constexpr std::string_view kWindow = "mask: causal and q_idx - kv_idx < 1024\n";
  // The first half of the keys is seen by next to no queries, the other half by many.
  constexpr std::string_view kHalves =
      "mask: \"kv_idx >= 4096 and q_idx % 4096 > kv_idx - 4096 or "
      "abs(q_idx - kv_idx) < 32\"\n";
  constexpr std::string_view kDocuments =
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
      "mask: doc[b, q_idx] == doc[b, kv_idx] and q_idx >= kv_idx\n";
  for (const int head_dim : {64, 128}) {
    EXPECT_TRUE(is_apart(head_dim, 512, "mask: causal\n"));
    EXPECT_FALSE(is_apart(head_dim, 16384, "mask: causal\n"));
    EXPECT_TRUE(is_apart(head_dim, 8192, kWindow));
    EXPECT_TRUE(is_apart(head_dim, 8192, kHalves));
    EXPECT_TRUE(is_apart(head_dim, 8192, kDocuments));
    EXPECT_FALSE(is_apart(head_dim, 512, ""));
  }
  EXPECT_TRUE(is_apart(64, 256, ""));  // two key tiles a head
}

// In order, long narrow heads under a causal mask: as measured, docs/lab/backward.md.
TEST(HopperBackwardPlan, LongNarrowHeadsInOrderLoadKeysApart) {
  const AttentionSpec spec =
      parse_spec(
          "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\ndeterministic: true\n",
          "t.yaml")
          .value();
  for (const int keys : {2048, 8192, 16384}) {
    const ProblemShape shape{
        .batch = 16384 / keys, .heads = 32, .kv_heads = 32, .q_len = keys, .kv_len = keys};
    const auto plan =
        default_plan(spec, shape, device_facts(Target::kSm90a), Pass::kBackward).value();
    EXPECT_EQ(to_string(plan), "sm90a backward sm_90a w2 q128 s2 counter apart") << keys;
  }
}

// A few short heads under a mask, one by one, end with a long item; off the counter the last ones'
// long items come first. Where L2 keeps the sums of all heads, loading keys apart costs nothing.
TEST(HopperBackwardPlan, FewShortHeadsTakeKeyTilesOffACounter) {
  const auto tile_of = [](int head_dim, const ProblemShape& shape) {
    const AttentionSpec spec =
        parse_spec(
            fmt::format("attune: 1\nname: t\ndtype: bf16\nhead_dim: {}\nmask: causal\n", head_dim),
            "t.yaml")
            .value();
    const KernelPlan plan =
        default_plan(spec, shape, device_facts(Target::kSm90a), Pass::kBackward).value();
    return std::get<Sm90aBackwardPlan>(plan.tile);
  };
  EXPECT_TRUE(tile_of(128, {.batch = 2, .heads = 12, .kv_heads = 12, .q_len = 1498, .kv_len = 1498})
                  .takes_items);
  EXPECT_TRUE(tile_of(64, {.batch = 26, .heads = 2, .kv_heads = 1, .q_len = 1360, .kv_len = 1360})
                  .keys_apart);
}

// Where the sm90a family's five products fit they are faster than the ordered kernels' seven.
TEST(HopperBackwardPlan, OrderedKernelsServeWhatFiveProductsCannot) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const auto chosen = [&](AttentionSpec spec) {
    return default_plan(spec, {.heads = 8, .kv_heads = 8, .q_len = 4096, .kv_len = 4096}, hopper,
                        Pass::kBackward)
        .value()
        .family();
  };
  for (const int head_dim : {64, 128}) EXPECT_EQ(chosen(plain_spec(head_dim)), Family::kSm90a);
  for (const int head_dim : {144, 256})
    EXPECT_EQ(chosen(plain_spec(head_dim)), Family::kSm90aOrdered);
  AttentionSpec spec = plain_spec(128);
  spec.deterministic = true;
  EXPECT_EQ(chosen(spec), Family::kSm90a);
  spec.dtype = DType::kF32;
  EXPECT_EQ(chosen(spec), Family::kSm80);
}

// What makes rows and dQ is hidden by nothing where heads have few keys. H200, us, by the plans
// here and by the former choice: 8 x 640 239, 258; 2 x 1024 143, 157; 1 x 1024 87, 93; and of a
// head to itself 16 x 256 96, in order 100, 1 x 1024 74, 89.
TEST(HopperBackwardPlan, RowsOfShortHeadsAreMadeInTheOpen) {
  const AttentionSpec spec =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml")
          .value();
  const auto chosen = [&](std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                          std::int64_t length) {
    const ProblemShape shape{batch, heads, kv_heads, length, length};
    const DeviceFacts hopper = device_facts(Target::kSm90a);
    return to_string(default_plan(spec, shape, hopper, Pass::kBackward).value());
  };
  const std::string in_order = "sm90a_ordered backward sm_90a ", five = "sm90a backward sm_90a ";
  EXPECT_EQ(chosen(8, 32, 8, 640), in_order + "q64 k64 s3 both qreg");
  EXPECT_EQ(chosen(2, 32, 8, 1024), in_order + "q64 k64 s3 both qreg");
  EXPECT_EQ(chosen(1, 32, 8, 1024), in_order + "q128 k64 s2");
  EXPECT_EQ(chosen(1, 32, 8, 512), in_order + "q64 k64 s3 both qreg parts");
  EXPECT_EQ(chosen(16, 16, 16, 256), five + "w2 q64 s2 counter");
  EXPECT_EQ(chosen(1, 32, 32, 1024), five + "w2 q64 s2 counter");
  EXPECT_EQ(chosen(1, 24, 8, 10240), five + "w2 q64 s2 counter");
}

// Five products of head dim 192, of what they know.
TEST(HopperBackwardPlan, WideHeadsHaveFiveProducts) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const auto plans = legal_plans(plain_spec(192), Family::kSm90aWide, hopper, Pass::kBackward);
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(to_string(plans.front()), "sm90a_wide backward sm_90a k80 s2");
  EXPECT_EQ(parse_plan(to_string(plans.front())).value(), plans.front());
  for (const char* text : {"k64 s2", "k80 s3"}) {
    const auto plan = parse_plan(std::string("sm90a_wide backward sm_90a ") + text);
    ASSERT_TRUE(plan.ok()) << text;
    EXPECT_FALSE(check_plan(plain_spec(192), *plan, hopper).ok()) << text;
  }
  EXPECT_FALSE(parse_plan("sm90a_wide backward sm_90a k80").ok());
  for (const char* lines : {"head_dim: 160\n", "head_dim: 256\n", "head_dim: 192\ndropout: 0.1\n",
                            "head_dim: 192\ndeterministic: true\n", "head_dim: 192\nlayout: thd\n",
                            "head_dim: {qk: 192, v: 80}\n"}) {
    const auto spec =
        parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\n") + lines, "t.yaml");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto families = families_for(*spec, Target::kSm90a, Pass::kBackward);
    ASSERT_TRUE(families.ok()) << lines;
    EXPECT_EQ(std::ranges::count(*families, Family::kSm90aWide), 0) << lines;
  }
}

// Both of its kernels are asked for what their layouts take; the compiler checks that it is enough.
TEST(HopperBackwardPlan, OrderedPlansFitAndRoundTrip) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  for (const int head_dim : {16, 64, 128, 192, 256}) {
    const AttentionSpec spec = plain_spec(head_dim);
    const auto plans = legal_plans(spec, Family::kSm90aOrdered, hopper, Pass::kBackward);
    EXPECT_GE(plans.size(), head_dim > 128 ? 1u : 4u) << head_dim;
    for (const KernelPlan& plan : plans) {
      const auto parsed = parse_plan(to_string(plan));
      ASSERT_TRUE(parsed.ok()) << render(parsed.error());
      EXPECT_EQ(*parsed, plan);
      for (const Launch& launch : launch_recipe(spec, plan).launches) {
        EXPECT_LE(launch.shared_memory_bytes, hopper.shared_memory_per_block_bytes);
      }
    }
  }
  const auto is_legal = [&](int head_dim, const char* text) {
    const auto plan = parse_plan(std::string("sm90a_ordered backward sm_90a ") + text);
    EXPECT_TRUE(plan.ok()) << text;
    return plan.ok() && check_plan(plain_spec(head_dim), *plan, hopper).ok();
  };
  EXPECT_TRUE(is_legal(256, "q64 k64 s2"));
  for (const char* text : {"q128 k64 s2", "q64 k128 s2", "q64 k64 s3", "q32 k64 s2",
                           "q64 k64 s2 both", "q64 k64 s2 w3"}) {
    EXPECT_FALSE(is_legal(256, text)) << text;
  }
  EXPECT_TRUE(is_legal(128, "q64 k64 s2 both"));
  EXPECT_TRUE(is_legal(64, "q128 k64 s2 w3"));
  EXPECT_FALSE(is_legal(128, "q64 k64 s2 both w3"));
  for (const char* text : {"q128 k64 s2 both", "q64 k64 s2 both w4", "q64 k64 s2 both w1"}) {
    EXPECT_FALSE(is_legal(64, text)) << text;
  }
  EXPECT_TRUE(is_legal(128, "q64 k64 s2 both qreg"));
  EXPECT_TRUE(is_legal(64, "q64 k64 s2 both w3"));
  for (const char* text :
       {"q64 k64 s2 both w3 qreg", "q64 k64 s2 both qreg", "q64 k128 s2 both qreg"}) {
    EXPECT_FALSE(is_legal(64, text)) << text;
  }
  EXPECT_FALSE(is_legal(96, "q64 k64 s2 both w3 qreg"));
  EXPECT_FALSE(is_legal(64, "q64 k128 s2 both w3"));
  EXPECT_TRUE(is_legal(64, "q64 k64 s2 both parts"));
  EXPECT_TRUE(is_legal(256, "q64 k64 s2 parts"));
  EXPECT_FALSE(is_legal(64, "q64 k64 s2 parts"));
}

// As many CTAs as there are processors where key tiles are few, and a launch that adds up what they
// leave; where they are many there is one for each, and nothing to add.
TEST(HopperBackwardPlan, WalksOfFewKeyTilesAreCut) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const AttentionSpec spec = plain_spec(128);
  const auto first = [&](const ProblemShape& shape) {
    return plans_by_cost(spec, shape, hopper, Pass::kBackward).value().front();
  };
  const ProblemShape few{.batch = 2, .heads = 6, .kv_heads = 1, .q_len = 65536, .kv_len = 154};
  const KernelPlan plan = first(few);
  ASSERT_EQ(plan.family(), Family::kSm90aOrdered) << to_string(plan);
  EXPECT_TRUE(std::get<Sm90aOrderedPlan>(plan.tile).cuts_walks) << to_string(plan);
  const LaunchRecipe recipe = launch_recipe(spec, plan);
  EXPECT_EQ(item_count(spec, recipe, recipe.launches[1], few), 132);
  // 308 rows of 256 columns, 8 a thread, beside 2 x 6 heads of 512 tiles.
  EXPECT_EQ(item_count(spec, recipe, recipe.launches[2], few), 2 * 6 * 512 + 26);
  ProblemShape many = few;
  many.kv_heads = 6;
  many.kv_len = 4096;
  EXPECT_EQ(item_count(spec, recipe, recipe.launches[1], many), 2 * 6 * 32);
  EXPECT_EQ(item_count(spec, recipe, recipe.launches[2], many), 2 * 6 * 512);
  const KernelPlan usual = first(many);
  EXPECT_FALSE(usual.family() == Family::kSm90aOrdered &&
               std::get<Sm90aOrderedPlan>(usual.tile).cuts_walks)
      << to_string(usual);
}

// Both of a warpgroup's gradients where it has registers for them, and a CTA of twice the keys.
TEST(HopperBackwardPlan, OrderedPlansKeepBothGradientsOfNarrowHeads) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  for (const int head_dim : {64, 96, 128, 144}) {
    AttentionSpec spec = plain_spec(head_dim);
    spec.deterministic = true;
    const auto plans = plans_by_cost(
        spec, {.heads = 8, .kv_heads = 8, .q_len = 4096, .kv_len = 4096}, hopper, Pass::kBackward);
    ASSERT_TRUE(plans.ok()) << render(plans.error());
    const auto found = std::ranges::find(*plans, Family::kSm90aOrdered, &KernelPlan::family);
    ASSERT_NE(found, plans->end());
    const KernelPlan& plan = *found;
    const bool both = head_dim <= 128;
    EXPECT_EQ(std::get<Sm90aOrderedPlan>(plan.tile).both_gradients, both) << head_dim;
    EXPECT_EQ(launch_recipe(spec, plan).launches[1].tile, both ? 128 : 64) << head_dim;
  }
  const KernelPlan plan = parse_plan("sm90a_ordered backward sm_90a q64 k64 s2 both w3").value();
  const auto launches = launch_recipe(plain_spec(64), plan).launches;
  EXPECT_EQ(launches[1].threads, 384);
  EXPECT_EQ(launches[2].threads, 512);
  EXPECT_EQ(launches[2].tile, 192);
}

}  // namespace
}  // namespace attune
