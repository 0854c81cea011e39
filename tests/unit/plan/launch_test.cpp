#include "generator/plan/launch.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <set>

#include "generator/plan/plan.hpp"
#include "generator/plan/promised_workspace.hpp"
#include "generator/spec/spec.hpp"
#include "templates/work_items.h"
#include "tests/unit/plan/plain_spec.hpp"

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

AttentionSpec packed_spec() {
  AttentionSpec spec;
  spec.layout = Layout::kThd;
  return spec;
}

TEST(Launch, APackedBatchHasNoMoreTilesThanItsList) {
  const ProblemShape shape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 1};
  const Launch launch{.cluster = 2, .item = WorkItem::kSequenceTile, .tile = 64};
  EXPECT_EQ(item_count(packed_spec(), {}, launch, shape), 8 * (1000 / 128 + 5));
  const WorkspaceRegion items{.content = Content::kSequenceItems, .length_unit = 128};
  EXPECT_EQ(region_bytes(packed_spec(), items, shape), 8 * (1000 / 128 + 5));
  // Four of one token more than a tile, and one of the rest.
  const std::int64_t tiles = 4 * 2 + (1000 - 4 * 129 + 127) / 128;
  EXPECT_LE(tiles, 1000 / 128 + 5);
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

TEST(Launch, TheListOfItemsIsMadeRightBeforeItIsRead) {
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
        ASSERT_EQ(recipe.launches.size(), 2u) << to_string(plan);
        EXPECT_EQ(recipe.launches[0].symbol, recipe.symbol + "_items");
        EXPECT_EQ(recipe.launches[0].item, WorkItem::kPass);
        const auto* decode = std::get_if<DecodePlan>(&plan.tile);
        EXPECT_EQ(recipe.main().item, decode == nullptr   ? WorkItem::kSequenceTile
                                      : decode->stretches ? WorkItem::kStretch
                                                          : WorkItem::kListedPiece);
        EXPECT_TRUE(covers(promised, recipe.workspace)) << to_string(plan);
        EXPECT_EQ(recipe.workspace.back().length_unit, recipe.main().tile * recipe.main().cluster);
      }
    }
  }
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

TEST(Launch, ABackwardPassOfPackedSequencesListsItsKeysAndItsQueries) {
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
TEST(Launch, ABackwardPassOfPackedSequencesListsItsTilesOnGpusToo) {
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
TEST(Launch, HoppersBackwardPassOfPackedSequencesHasSumsOfAllHeads) {
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
TEST(Launch, HoppersOrderedBackwardPassOfPackedSequencesTakesListedTiles) {
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
TEST(Launch, RowsOfPackedSequencesFollowOneAnother) {
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

// CTAs of Hopper's backward pass that take key tiles off a counter: as many as there are
// processors.
TEST(Launch, KeyTilesMayBeTakenOffACounter) {
  const ProblemShape shape{.batch = 16, .heads = 32, .kv_heads = 32, .q_len = 1024, .kv_len = 1024};
  const auto counts = [](const LaunchRecipe& recipe) {
    return std::ranges::count(recipe.workspace, WorkspaceRegion::Content::kSchedulerCounter,
                              &WorkspaceRegion::content);
  };
  const auto grid = [&](const LaunchRecipe& recipe) {
    const Launch& launch = recipe.launches[1];
    return grid_size(launch, item_count(plain_spec(64), recipe, launch, shape), 132).value();
  };
  const auto recipe_of = [](const char* text) {
    return launch_recipe(plain_spec(64), parse_plan(text).value());
  };
  const LaunchRecipe one_each = recipe_of("sm90a backward sm_90a w2 q64 s3 kreg");
  EXPECT_EQ(counts(one_each), 0);
  EXPECT_EQ(grid(one_each), 16u * 32 * 8);
  const LaunchRecipe taken = recipe_of("sm90a backward sm_90a w2 q64 s3 kreg counter");
  EXPECT_EQ(counts(taken), 1);
  EXPECT_EQ(grid(taken), 132u);
}

// Wide heads that come off the counter all have sums of dQ, and a later launch brings all to rows.
TEST(Launch, AllWideHeadsOffACounterHaveSums) {
  const AttentionSpec spec =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml")
          .value();
  const ProblemShape shape{.batch = 4, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
  const auto recipe_of = [&](const char* text) {
    return launch_recipe(spec, parse_plan(text).value());
  };
  const LaunchRecipe taken = recipe_of("sm90a backward sm_90a w2 q64 s2 counter");
  const LaunchRecipe one_each = recipe_of("sm90a backward sm_90a w2 q64 s2");
  EXPECT_EQ(item_count(spec, taken, taken.launches[2], shape), 4 * 16 * 64);
  EXPECT_LT(item_count(spec, one_each, one_each.launches[2], shape), 4 * 16 * 64);
  EXPECT_GE(workspace_bytes(spec, taken.workspace, shape), 4ll * 16 * 4096 * 128 * 4);
  EXPECT_TRUE(covers(taken.workspace, one_each.workspace));
  EXPECT_FALSE(covers(one_each.workspace, taken.workspace));
  const auto widest = widest_workspace(spec, Pass::kBackward, Target::kSm90a);
  EXPECT_TRUE(covers(widest, taken.workspace));
  EXPECT_TRUE(covers(widest, one_each.workspace));
}

// A kernel has room for them if it begins with such a plan, or one is nearly the fastest.
TEST(Launch, SumsOfAllHeadsArePromisedWhereTheyMayCome) {
  const AttentionSpec spec =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n", "t.yaml").value();
  const KernelPlan apart = parse_plan("sm90a backward sm_90a w2 q64 s3 kreg counter apart").value();
  const KernelPlan in_turn = parse_plan("sm90a backward sm_90a w2 q64 s3 kreg").value();
  const auto shape_of = [](std::int64_t length) {
    return ProblemShape{
        .batch = 16384 / length, .heads = 32, .kv_heads = 32, .q_len = length, .kv_len = length};
  };
  const auto room_of = [&](const KernelPlan& first, std::int64_t length) {
    return promised_workspace(spec, first, shape_of(length), device_facts(Target::kSm90a));
  };
  const auto needed = launch_recipe(spec, apart).workspace;
  EXPECT_TRUE(covers(room_of(apart, 16384), needed));
  EXPECT_TRUE(covers(room_of(in_turn, 512), needed));
  EXPECT_FALSE(covers(room_of(in_turn, 16384), needed));
  EXPECT_LT(workspace_bytes(spec, room_of(in_turn, 16384), shape_of(16384)),
            workspace_bytes(spec, needed, shape_of(16384)) / 2);
  for (const KernelPlan& plan :
       legal_plans(spec, Family::kSm90a, device_facts(Target::kSm90a), Pass::kBackward)) {
    const auto regions = launch_recipe(spec, plan).workspace;
    EXPECT_TRUE(covers(room_of(plan, 16384), regions)) << to_string(plan);
    EXPECT_TRUE(covers(room_of(in_turn, 16384), regions) || covers(regions, needed))
        << to_string(plan);
  }
}

// Hopper's backward pass: the main launch makes rows of heads that come later, not those of the
// first wave of CTAs, and none under a mask that leaves short heads' CTAs no time for it.
TEST(Launch, TheFirstHeadsHaveTheirRowsBeforeTheMainLaunch) {
  AttentionSpec spec = plain_spec(128);
  const KernelPlan plan = parse_plan("sm90a backward sm_90a w2 q64 s2").value();
  const auto rows = [&](const ProblemShape& shape) {
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    return item_count(spec, recipe, recipe.launches[0], shape);
  };
  const ProblemShape shape{.batch = 16, .heads = 16, .kv_heads = 16, .q_len = 1024, .kv_len = 1024};
  EXPECT_EQ(rows(shape), 2 * 18 * 8) << "17 heads of 8 key tiles fill 132 processors";
  ProblemShape grouped = shape;
  grouped.heads = 64;
  EXPECT_EQ(rows(grouped), 2 * 18 * 4 * 8);
  ProblemShape few = shape;
  few.batch = 2;
  EXPECT_EQ(rows(few), 32 * 8) << "all";
  ProblemShape narrow = shape;
  narrow.kv_len = 900;
  EXPECT_EQ(rows(narrow), 2 * 18 * 8);
  narrow.kv_len = 896;
  EXPECT_EQ(rows(narrow), 256 * 8) << "heads of 7 tiles";
  spec.mask =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml")->mask;
  EXPECT_EQ(rows(shape), 256 * 8) << "heads of 8 tiles";
  ProblemShape longer = shape;
  longer.kv_len = 2048;
  EXPECT_EQ(rows(longer), 2 * 17 * 8);
  spec.mask = nullptr;
  spec.deterministic = true;
  EXPECT_EQ(rows(shape), 256 * 8) << "the warps wait for turns";
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
