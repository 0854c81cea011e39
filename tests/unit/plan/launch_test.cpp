#include "generator/plan/launch.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>

#include "generator/plan/plan.hpp"
#include "generator/spec/spec.hpp"

namespace attune {
namespace {

using Content = WorkspaceRegion::Content;

// As of a backward pass in three launches.
LaunchRecipe made_up_backward() {
  return {.symbol = "att_bwd",
          .launches = {{.symbol = "att_bwd_rows", .item = WorkItem::kRows, .tile = 4},
                       {.symbol = "att_bwd",
                        .threads = 384,
                        .cluster = 2,
                        .item = WorkItem::kKeyTile,
                        .tile = 128,
                        .tensor_maps = {{.tensor = TensorMapRecipe::Tensor::kOutputGradient}},
                        .zeroed = {Content::kQuerySums}},
                       {.symbol = "att_bwd_queries", .item = WorkItem::kQueryTile, .tile = 64}},
          .workspace = {{.content = Content::kRowDeltas},
                        {.content = Content::kQuerySums, .length_unit = 64},
                        {.content = Content::kKeySums, .length_unit = 128, .walk_tile = 64}}};
}

AttentionSpec spec_192_128() {
  AttentionSpec spec;
  spec.head_dim_qk = 192;
  spec.head_dim_v = 128;
  return spec;
}

constexpr ProblemShape kShape{.batch = 3, .heads = 8, .kv_heads = 2, .q_len = 100, .kv_len = 300};

TEST(Launch, ItemsFollowFromTheShape) {
  const AttentionSpec spec = spec_192_128();
  const LaunchRecipe recipe = made_up_backward();
  const auto items = [&](std::size_t i) {
    return item_count(spec, recipe, recipe.launches[i], kShape);
  };
  EXPECT_EQ(items(0), 3 * 8 * 100 / 4);
  EXPECT_EQ(items(1), 2 * 2 * 3);  // 300 keys are two times 256
  EXPECT_EQ(items(2), 2 * 8 * 3);
  EXPECT_EQ(&recipe.main(), &recipe.launches[1]);
  EXPECT_TRUE(recipe.needs_tensor_maps());
  // Four heads of a K/V head share an item of 96 rows where each has 20 queries.
  const Launch packed{.item = WorkItem::kPackedQueryTile, .tile = 96};
  ProblemShape decode = kShape;
  decode.q_len = 20;
  EXPECT_EQ(item_count(spec, recipe, packed, decode), 1 * 2 * 3);
  EXPECT_EQ(item_count(spec, recipe, packed, kShape), 2 * 4 * 2 * 3);
  EXPECT_EQ(item_count(spec, recipe, {.item = WorkItem::kKvHead}, kShape), 2 * 3);
  EXPECT_EQ(item_count(spec, recipe, {.item = WorkItem::kPass}, kShape), 1);
  EXPECT_EQ(item_count(spec, recipe, {.item = WorkItem::kSequence}, kShape), kShape.batch);
}

// The CTAs of a cluster would share boxes of a page.
TEST(Launch, PagesAreOfEveryFamilyAndNoCluster) {
  AttentionSpec spec;
  spec.layout = Layout::kPaged;
  const auto families = families_for(spec, Target::kSm90a);
  ASSERT_TRUE(families.ok());
  EXPECT_EQ(*families, (std::vector{Family::kSm90a, Family::kSm80, Family::kDecode}));
  EXPECT_FALSE(families_for(spec, Target::kSm90a, Pass::kBackward).ok());
  const DeviceFacts device = device_facts(Target::kSm90a);
  const auto clusters = [&](const AttentionSpec& of) {
    return std::ranges::count_if(
        legal_plans(of, Family::kSm90a, device),
        [](const KernelPlan& plan) { return std::get<Sm90aPlan>(plan.tile).cluster > 1; });
  };
  EXPECT_EQ(clusters(spec), 0);
  EXPECT_GT(clusters(AttentionSpec{}), 0);
}

// What a host has launched before may let its successor start early, as some libraries' products
// do, and a launch that starts early waits for the one right before it alone.
TEST(Launch, APassStartsWhenWhatIsBeforeItHasEnded) {
  for (const char* lines :
       {"mask: causal",
        "mask: document(doc)\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}", "layout: thd",
        "layout: thd\nmask: causal and doc[q_pos] == doc[kv_idx]\n"
        "tensors: {doc: {dtype: int32, dims: [kv_len]}}",
        "layout: paged\nmask: causal", "layout: paged\nshared_prefixes: true",
        "layout: paged\nbatch_invariant: true", "deterministic: true\nmask: causal"}) {
    const auto spec =
        parse_spec(fmt::format("attune: 1\nname: f\ndtype: bf16\nhead_dim: 64\n{}\n", lines), "");
    ASSERT_TRUE(spec.ok()) << lines << render(spec.error());
    int recipes = 0;
    for (const Target target : {Target::kSm80, Target::kSm90a}) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const auto families = families_for(*spec, target, pass);
        for (const Family family : families.ok() ? *families : std::vector<Family>{}) {
          for (const KernelPlan& plan : legal_plans(*spec, family, device_facts(target), pass)) {
            const LaunchRecipe recipe = launch_recipe(*spec, plan);
            ASSERT_FALSE(recipe.launches.front().overlaps_previous) << lines << to_string(plan);
            for (const Launch& launch : recipe.launches) {
              ASSERT_TRUE(!launch.overlaps_previous || launch.zeroed.empty()) << to_string(plan);
            }
            ++recipes;
          }
        }
      }
    }
    EXPECT_GT(recipes, 0) << lines;
  }
}

TEST(Launch, GridsAreWholeClustersAndNoMoreThanTheDeviceHolds) {
  Launch launch{.cluster = 2};
  EXPECT_EQ(*grid_size(launch, 12, 132), 24u);
  launch.persistent = true;
  EXPECT_EQ(*grid_size(launch, 12, 132), 24u);
  EXPECT_EQ(*grid_size(launch, 1000, 131), 130u);
  launch.ctas_per_processor = 2;
  EXPECT_EQ(*grid_size(launch, 1000, 131), 262u);
}

TEST(Launch, MoreItemsThanAKernelCanNumberAreRefused) {
  const Launch launch{.symbol = "k"};
  EXPECT_EQ(*grid_size(launch, INT_MAX, 1), static_cast<unsigned>(INT_MAX));
  const auto refused = grid_size(launch, std::int64_t{INT_MAX} + 1, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().id, "launch-too-large");
  EXPECT_EQ(refused.error().kind, ErrorKind::kBadInput);
  EXPECT_FALSE(grid_size({.cluster = 2, .persistent = true}, INT_MAX, 1).ok());
}

TEST(Launch, RegionsHaveTheSizesOfTheirTensors) {
  const AttentionSpec spec = spec_192_128();
  const auto bytes = [&](WorkspaceRegion region) { return region_bytes(spec, region, kShape); };
  EXPECT_EQ(bytes({.content = Content::kSchedulerCounter}), 16);
  EXPECT_EQ(bytes({.content = Content::kRowDeltas}), 3 * 8 * 100 * 4);
  EXPECT_EQ(bytes({.content = Content::kSumTurns, .length_unit = 64}), 3 * 8 * 2 * 4);
  EXPECT_EQ(bytes({.content = Content::kQuerySums}), 3 * 8 * 100 * 192 * 4);
  EXPECT_EQ(bytes({.content = Content::kQuerySums, .length_unit = 64}), 3 * 8 * 128 * 192 * 4);
  // Of walks that are whole.
  EXPECT_EQ(bytes({.content = Content::kKeySums, .length_unit = 128}), 3 * 2 * 384 * 192 * 4);
  // Four parts, as two of eight query tiles are the least.
  EXPECT_EQ(bytes({.content = Content::kKeySums, .length_unit = 128, .walk_tile = 64}),
            4 * 3 * 2 * 384 * 192 * 4);
  EXPECT_EQ(bytes({.content = Content::kValueSums, .length_unit = 64, .walk_tile = 64}),
            4 * 3 * 2 * 320 * 128 * 4);
  // A single one has no place in it.
  ProblemShape many_keys = kShape;
  many_keys.kv_len = 1500;
  EXPECT_EQ(region_bytes(spec, {.content = Content::kKeySums, .length_unit = 128, .walk_tile = 64},
                         many_keys),
            0);
  const auto learned = [&](int keys) {
    return bytes({.content = Content::kLearnedSums, .length_unit = keys, .columns = 32});
  };
  EXPECT_EQ(learned(128), 3 * 8 * 3 * 32 * 4);
  EXPECT_EQ(learned(INT_MAX), 3 * 8 * 32 * 4);
  const LaunchRecipe recipe = made_up_backward();
  EXPECT_EQ(workspace_bytes(spec, recipe.workspace, kShape),
            3 * 8 * 100 * 4 + 3 * 8 * 128 * 192 * 4 + 4 * 3 * 2 * 384 * 192 * 4);
  EXPECT_EQ(workspace_bytes(spec, {}, kShape), 0);
}

TEST(Launch, BlockRangesHaveAPairForEvery64ElementsOfARow) {
  AttentionSpec spec;
  const expr::TensorDecl doc{.name = "doc",
                             .type = expr::TensorType::kInt32,
                             .dims = {{.dim = expr::Dim::kBatch}, {.dim = expr::Dim::kKvLen}}};
  spec.environment.tensors = {doc, doc};
  const ProblemShape shape = {.batch = 3, .q_len = 5, .kv_len = 129};
  const RangeGeometry geometry = range_geometry(doc, shape);
  EXPECT_EQ(geometry.rows, 3);
  EXPECT_EQ(geometry.length, 129);
  EXPECT_EQ(geometry.pairs, 9);
  const WorkspaceRegion ranges{.content = Content::kBlockRanges, .slot = 1};
  EXPECT_EQ(region_bytes(spec, ranges, shape), 80);  // 9 pairs of 8 bytes, up to 16
  const Launch pre_pass{.item = WorkItem::kRangePairs, .tile = 4};
  const LaunchRecipe recipe{
      .launches = {pre_pass},
      .workspace = {{.content = Content::kBlockRanges}, {.content = Content::kRowDeltas}, ranges}};
  EXPECT_EQ(item_count(spec, recipe, pre_pass, shape), 5);  // 18 pairs, four at a time
}

TEST(Launch, WhatNoMachineHoldsIsNotSmall) {
  AttentionSpec spec = spec_192_128();
  const expr::TensorDecl bias{.name = "bias",
                              .type = expr::TensorType::kFloat32,
                              .dims = {{.dim = expr::Dim::kBatch},
                                       {.dim = expr::Dim::kHeads},
                                       {.dim = expr::Dim::kQLen},
                                       {.dim = expr::Dim::kKvLen}}};
  spec.environment.tensors = {bias};
  const ProblemShape largest = {.batch = 65536,
                                .heads = 4096,
                                .kv_heads = 4096,
                                .q_len = std::int64_t{1} << 28,
                                .kv_len = std::int64_t{1} << 28};
  const WorkspaceRegion sums{.content = Content::kQuerySums, .length_unit = 128};
  const WorkspaceRegion ranges{.content = Content::kBlockRanges};
  EXPECT_EQ(region_bytes(spec, sums, largest), kTooLarge);
  EXPECT_EQ(region_bytes(spec, ranges, largest), kTooLarge);
  const WorkspaceRegion both[] = {sums, ranges};
  EXPECT_EQ(workspace_bytes(spec, both, largest), kTooLarge);
  EXPECT_EQ(region_bytes(spec, {.content = Content::kRowDeltas}, largest), std::int64_t{1} << 58);
  const Launch rows{.item = WorkItem::kRows, .tile = 4};
  EXPECT_EQ(item_count(spec, {}, rows, largest), std::int64_t{1} << 54);
  EXPECT_FALSE(grid_size(rows, item_count(spec, {}, rows, largest), 1).ok());
}

TEST(Launch, APromiseCoversWhatIsNoLarger) {
  const WorkspaceRegion unit_128{.content = Content::kRowDeltas, .length_unit = 128};
  const WorkspaceRegion unit_64{.content = Content::kRowDeltas, .length_unit = 64};
  // Of other tiles there are other parts.
  const WorkspaceRegion parts_128{
      .content = Content::kKeySums, .length_unit = 128, .walk_tile = 64};
  const WorkspaceRegion parts_64{.content = Content::kKeySums, .length_unit = 64, .walk_tile = 64};
  const WorkspaceRegion longer{.content = Content::kKeySums, .length_unit = 128, .walk_tile = 128};
  const WorkspaceRegion ranges_0{.content = Content::kBlockRanges};
  const WorkspaceRegion ranges_1{.content = Content::kBlockRanges, .slot = 1};
  const auto one_covers = [](const WorkspaceRegion& has, const WorkspaceRegion& need) {
    return covers({&has, 1}, {&need, 1});
  };
  EXPECT_TRUE(one_covers(unit_128, unit_64));
  EXPECT_FALSE(one_covers(unit_64, unit_128));
  EXPECT_TRUE(one_covers(parts_128, parts_128));
  EXPECT_FALSE(one_covers(parts_128, parts_64));
  EXPECT_FALSE(one_covers(parts_128, longer));
  EXPECT_FALSE(one_covers(ranges_0, ranges_1));
  EXPECT_TRUE(covers({}, {}));
}

}  // namespace
}  // namespace attune
