// Launches of packed sequences: the lists of their tiles, and the rows that lie one after another.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "generator/plan/launch.hpp"
#include "generator/plan/plan.hpp"
#include "generator/spec/spec.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

using Content = WorkspaceRegion::Content;

AttentionSpec packed_spec() {
  AttentionSpec spec;
  spec.layout = Layout::kThd;
  return spec;
}

TEST(PackedLaunch, APackedBatchHasNoMoreTilesThanItsList) {
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 1};
  const Launch launch{.cluster = 2, .item = WorkItem::kSequenceTile, .tile = 64};
  EXPECT_EQ(item_count(packed_spec(), {}, launch, shape), 8 * (1000 / 128 + 5));
  const WorkspaceRegion items{.content = Content::kSequenceItems, .length_unit = 128};
  EXPECT_EQ(region_bytes(packed_spec(), items, shape), 8 * (1000 / 128 + 5));
  // Four of one token more than a tile, and one of the rest.
  const std::int64_t tiles = 4 * 2 + (1000 - 4 * 129 + 127) / 128;
  EXPECT_LE(tiles, 1000 / 128 + 5);
}

// CTAs that find their items take one of each sequence's first ones and one of all others.
TEST(PackedLaunch, NoBatchHasMoreItemsThanCtasThatFindThem) {
  std::mt19937 random(17);
  for (const auto& [heads, tile] :
       {std::pair{1, 16}, {3, 16}, {4, 16}, {16, 16}, {24, 16}, {5, 32}, {40, 32}}) {
    for (int batch = 0; batch < 200; ++batch) {
      ProblemShape shape{.batch = 1 + batch % 9, .heads = 2 * heads, .kv_heads = 2, .kv_len = 9};
      std::int64_t items = shape.batch * att::tile_count(heads, tile);
      for (int b = 0; b < shape.batch; ++b) {
        const int queries = random() % 3 == 0 ? 0 : random() % (batch % 2 == 0 ? 5 : 90);
        shape.q_len += queries;
        if (queries == 0) continue;
        const auto tiles = att::packed_tiles(heads, 1, queries, tile);
        ASSERT_GE(tiles.per_kv_head(), att::tile_count(heads, tile));
        items += tiles.per_kv_head() - att::tile_count(heads, tile);
      }
      const Launch launch{.item = WorkItem::kFoundTile, .tile = tile};
      EXPECT_LE(2 * items, item_count(packed_spec(), {}, launch, shape)) << heads << " " << tile;
    }
  }
  const ProblemShape tokens{.batch = 8, .heads = 4, .kv_heads = 1, .q_len = 4, .kv_len = 9};
  const Launch launch{.item = WorkItem::kFoundTile, .tile = 16};
  EXPECT_EQ(item_count(packed_spec(), {}, launch, tokens), 8) << "four queries of four heads fit";
}

TEST(PackedLaunch, TheListOfItemsIsMadeRightBeforeItIsRead) {
  for (const Target target : {Target::kSm80, Target::kSm90a, Target::kCpu}) {
    const DeviceFacts device = device_facts(target);
    const auto families = families_for(packed_spec(), target);
    ASSERT_TRUE(families.ok());
    EXPECT_EQ(families->size(), target == Target::kSm90a ? 3u : target == Target::kSm80 ? 2u : 1u);
    const std::vector<WorkspaceRegion> promised =
        widest_workspace(packed_spec(), Pass::kForward, target);
    for (const Family family : *families) {
      const std::vector<KernelPlan> plans = legal_plans(packed_spec(), family, device);
      EXPECT_GT(plans.size(), 10u) << to_string(family);
      for (const KernelPlan& plan : plans) {
        const LaunchRecipe recipe = launch_recipe(packed_spec(), plan);
        if (recipe.main().item == WorkItem::kFoundTile) continue;
        const auto* decode = std::get_if<DecodePlan>(&plan.tile);
        // Stretches are found, and what counts arrivals the launch before has marked.
        EXPECT_EQ(recipe.main().marks_arrivals, decode != nullptr && decode->stretches);
        ASSERT_EQ(recipe.launches.size(), recipe.main().marks_arrivals ? 1u : 2u)
            << to_string(plan);
        if (!recipe.main().marks_arrivals) {
          EXPECT_EQ(recipe.launches[0].symbol, recipe.symbol + "_items");
          EXPECT_EQ(recipe.launches[0].item, WorkItem::kPass);
        }
        EXPECT_EQ(recipe.main().item, decode == nullptr   ? WorkItem::kSequenceTile
                                      : decode->stretches ? WorkItem::kStretch
                                                          : WorkItem::kListedPiece);
        EXPECT_TRUE(covers(promised, recipe.workspace)) << to_string(plan);
        EXPECT_EQ(recipe.workspace.back().length_unit, recipe.main().tile * recipe.main().cluster);
      }
    }
  }
}

TEST(PackedLaunch, ABackwardPassOfPackedSequencesListsItsKeysAndItsQueries) {
  AttentionSpec spec = packed_spec();
  const DeviceFacts device = device_facts(Target::kCpu);
  const std::vector<WorkspaceRegion> promised =
      widest_workspace(spec, Pass::kBackward, Target::kCpu);
  const std::vector<KernelPlan> plans = legal_plans(spec, Family::kCpu, device, Pass::kBackward);
  EXPECT_GT(plans.size(), 10u);
  for (const KernelPlan& plan : plans) {
    SCOPED_TRACE(to_string(plan));
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    EXPECT_TRUE(covers(promised, recipe.workspace));
    const int tile = std::get<CpuBackwardPlan>(plan.tile).tile;
    const ItemTiles tiles = item_tiles(spec, plan);
    if (std::get<CpuBackwardPlan>(plan.tile).whole_heads) {
      // Its items are K/V heads of sequences, which need no list.
      EXPECT_EQ(recipe.main().item, WorkItem::kKvHead);
      EXPECT_EQ(tiles.queries + tiles.keys, 0);
      continue;
    }
    ASSERT_EQ(recipe.launches.size(), 4u);
    EXPECT_EQ(recipe.launches[1].symbol, recipe.symbol + "_items");
    EXPECT_EQ(recipe.launches[2].item, WorkItem::kSequenceKeyTile);
    EXPECT_EQ(recipe.launches[3].item, WorkItem::kSequenceTile);
    EXPECT_EQ(tiles.queries, tile);
    EXPECT_EQ(tiles.keys, tile);
  }
}

// Two parts of the columns are two items of a key tile.
TEST(PackedLaunch, ABackwardPassOfPackedSequencesListsItsTilesOnGpusToo) {
  AttentionSpec wide = packed_spec();
  wide.head_dim_qk = 192;
  wide.head_dim_v = 128;
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 300};
  for (const Target target : {Target::kSm80, Target::kSm90a}) {
    for (const AttentionSpec& spec : {packed_spec(), wide}) {
      const auto families = families_for(spec, target, Pass::kBackward);
      ASSERT_TRUE(families.ok()) << render(families.error());
      std::vector<Family> expected = {Family::kSm80};
      if (target == Target::kSm90a) {
        expected.insert(expected.begin(), Family::kSm90aOrdered);
        if (spec.head_dim_qk <= 128) expected.insert(expected.begin(), Family::kSm90a);
      }
      EXPECT_EQ(*families, expected);
      const std::vector<WorkspaceRegion> promised = widest_workspace(spec, Pass::kBackward, target);
      const std::vector<KernelPlan> plans =
          legal_plans(spec, Family::kSm80, device_facts(target), Pass::kBackward);
      EXPECT_GT(plans.size(), 3u);
      for (const KernelPlan& plan : plans) {
        SCOPED_TRACE(to_string(plan));
        const LaunchRecipe recipe = launch_recipe(spec, plan);
        EXPECT_TRUE(covers(promised, recipe.workspace));
        const int tile = tile_shape(plan).kv;
        ASSERT_EQ(recipe.launches.size(), 4u);
        const auto items = [&](std::size_t i) {
          return item_count(spec, recipe, recipe.launches[i], shape);
        };
        EXPECT_EQ(recipe.launches[0].symbol, recipe.symbol + "_rows");
        EXPECT_EQ(items(0), (1000 / 128 + 5) * 8);
        EXPECT_EQ(recipe.launches[1].symbol, recipe.symbol + "_items");
        EXPECT_EQ(recipe.launches[1].threads, att::kItemThreads);
        EXPECT_EQ(items(2), (300 / tile + 5) * 2 * (spec.head_dim_qk == 192 ? 2 : 1));
        EXPECT_EQ(items(3), (1000 / tile + 5) * 8);
        const ItemTiles tiles = item_tiles(spec, plan);
        EXPECT_EQ(tiles.queries, tile);
        EXPECT_EQ(tiles.keys, tile);
      }
    }
  }
}

// All heads have sums of dQ, whose launch finds its rows itself. Main launch: off a counter.
TEST(PackedLaunch, HoppersBackwardPassOfPackedSequencesHasSumsOfAllHeads) {
  const AttentionSpec spec = packed_spec();
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 300};
  const auto promised = widest_workspace(spec, Pass::kBackward, Target::kSm90a);
  const auto plans =
      legal_plans(spec, Family::kSm90a, device_facts(Target::kSm90a), Pass::kBackward);
  ASSERT_FALSE(plans.empty());
  for (const KernelPlan& plan : plans) {
    SCOPED_TRACE(to_string(plan));
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    EXPECT_TRUE(covers(promised, recipe.workspace));
    ASSERT_EQ(recipe.launches.size(), 4u);
    EXPECT_EQ(recipe.launches[0].symbol, recipe.symbol + "_items");
    EXPECT_EQ(recipe.launches[1].symbol, recipe.symbol + "_rows");
    EXPECT_TRUE(recipe.launches[1].overlaps_previous) << "rows are made while the list is";
    // As many parts of the 14 key tiles' walks as processors have CTAs for, and CTAs that add up
    // what these leave, 16 rows each.
    const bool cuts_walks = std::get<Sm90aBackwardPlan>(plan.tile).cuts_walks;
    const int key_tiles = (300 / 128 + 5) * 2, parts = cuts_walks ? 132 / key_tiles : 1;
    EXPECT_EQ(item_count(spec, recipe, recipe.launches[2], shape), key_tiles * parts);
    EXPECT_EQ(item_count(spec, recipe, recipe.launches[3], shape),
              (1000 / 128 + 5) * 8 + (cuts_walks ? key_tiles * 128 / 16 : 0));
    EXPECT_EQ(recipe.launches[3].threads, 512);
    EXPECT_TRUE(recipe.main().persistent);
    const ItemTiles tiles = item_tiles(spec, plan);
    EXPECT_EQ(tiles.queries, 0);
    EXPECT_EQ(tiles.keys, 128);
    std::set<Content> contents;
    for (const WorkspaceRegion& region : recipe.workspace) {
      contents.insert(region.content);
      if (region.content == Content::kKeySums) {
        EXPECT_EQ(region_bytes(spec, region, shape),
                  4 * parts * key_tiles * 128 * spec.head_dim_qk);
      }
      if (region.content != WorkspaceRegion::Content::kQuerySums) continue;
      const int columns = (spec.head_dim_qk + 63) / 64 * 64;
      EXPECT_EQ(region_bytes(spec, region, shape), 4 * 8 * (1000 / 128 + 5) * 128 * columns);
    }
    EXPECT_FALSE(contents.contains(Content::kHeadCounters));
    EXPECT_TRUE(contents.contains(Content::kSchedulerCounter));
    EXPECT_FALSE(contents.contains(Content::kSequenceItems));
  }
  AttentionSpec in_order = spec;
  in_order.deterministic = true;
  const auto families = families_for(in_order, Target::kSm90a, Pass::kBackward);
  ASSERT_TRUE(families.ok()) << render(families.error());
  EXPECT_EQ(*families, (std::vector<Family>{Family::kSm90aOrdered, Family::kSm80}));
}

// Each kernel takes tiles of a list: 64 keys, or 128 queries.
TEST(PackedLaunch, HoppersOrderedBackwardPassOfPackedSequencesTakesListedTiles) {
  AttentionSpec spec = packed_spec();
  spec.head_dim_qk = spec.head_dim_v = 256;
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 300};
  const auto promised = widest_workspace(spec, Pass::kBackward, Target::kSm90a);
  const auto plans =
      legal_plans(spec, Family::kSm90aOrdered, device_facts(Target::kSm90a), Pass::kBackward);
  ASSERT_FALSE(plans.empty());
  for (const KernelPlan& plan : plans) {
    SCOPED_TRACE(to_string(plan));
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    EXPECT_TRUE(covers(promised, recipe.workspace));
    ASSERT_EQ(recipe.launches.size(), 4u);
    EXPECT_EQ(recipe.launches[0].symbol, recipe.symbol + "_items");
    EXPECT_EQ(recipe.launches[1].symbol, recipe.symbol + "_rows");
    for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(recipe.launches[i].overlaps_previous) << i;
    const bool cuts_walks = std::get<Sm90aOrderedPlan>(plan.tile).cuts_walks;
    const int key_tiles = (300 / 64 + 5) * 2, parts = cuts_walks ? 132 / key_tiles : 1;
    EXPECT_EQ(item_count(spec, recipe, recipe.launches[2], shape), key_tiles * parts);
    EXPECT_EQ(item_count(spec, recipe, recipe.launches[3], shape),
              (1000 / 128 + 5) * 8 + (cuts_walks ? key_tiles * 64 / 16 : 0));
    const ItemTiles tiles = item_tiles(spec, plan);
    EXPECT_EQ(tiles.queries, 128);
    EXPECT_EQ(tiles.keys, 64);
  }
}

// A slice has the rows of all sequences; where they begin at a multiple, each has room for that.
TEST(PackedLaunch, RowsOfPackedSequencesFollowOneAnother) {
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 300};
  const auto bytes = [&](const WorkspaceRegion& region) {
    return region_bytes(packed_spec(), region, shape);
  };
  EXPECT_EQ(bytes({.content = Content::kRowDeltas}), 8 * 1000 * 4);
  EXPECT_EQ(bytes({.content = Content::kRowDeltas, .length_unit = 128}),
            8 * (1000 / 128 + 5) * 128 * 4);
  EXPECT_EQ(bytes({.content = Content::kLearnedSums, .length_unit = 64, .columns = 4}),
            8 * (300 / 64 + 5) * 4 * 4);
  EXPECT_EQ(bytes({.content = Content::kKeyItems, .length_unit = 64}), 8 * (300 / 64 + 5) + 8);
  const Launch keys{.parts = 2, .item = WorkItem::kSequenceKeyTile, .tile = 64};
  EXPECT_EQ(item_count(packed_spec(), {}, keys, shape), 2 * 2 * (300 / 64 + 5));
  const Launch rows{.item = WorkItem::kRows, .tile = 64};
  EXPECT_EQ(item_count(packed_spec(), {}, rows, shape), 8 * 1000 / 64);
}

}  // namespace
}  // namespace attune
