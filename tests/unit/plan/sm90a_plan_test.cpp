// The Hopper family's plans: text, limits, launch recipe, and what the cost model picks.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "generator/plan/family.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/plan.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

KernelPlan hopper_plan(Sm90aPlan tile) {
  return {.pass = Pass::kForward, .target = Target::kSm90a, .tile = tile};
}

Status check_tile(const AttentionSpec& spec, Sm90aPlan tile) {
  return check_plan(spec, hopper_plan(tile), device_facts(Target::kSm90a));
}

TEST(Sm90aPlan, TextRoundTrips) {
  const KernelPlan plan = hopper_plan({.warpgroups = 3,
                                       .tile_kv = 176,
                                       .stages = 2,
                                       .score_buffers = 1,
                                       .q_in_registers = true,
                                       .cluster = 1,
                                       .schedule = Sm90aPlan::Schedule::kLongestFirst,
                                       .heads_per_group = 16,
                                       .frozen_max = true,
                                       .tma_store = false,
                                       .ping_pong = true,
                                       .p_in_shared = true});
  EXPECT_EQ(to_string(plan),
            "sm90a forward sm_90a w3 k176 s2 b1 qreg psmem c1 longest g16 frozen pp");
  const auto parsed = parse_plan(to_string(plan));
  ASSERT_TRUE(parsed.ok()) << render(parsed.error());
  EXPECT_EQ(*parsed, plan);
}

// A product goes through 80 columns of a head dim of 72.
TEST(Sm90aPlan, HeadDimsInStepsOf8TakeWholeStepsOf16) {
  for (const int head_dim : {40, 72, 104, 120}) {
    const AttentionSpec spec = plain_spec(head_dim), wider = plain_spec(head_dim + 8);
    const ProblemShape shape{
        .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto plan = default_plan(spec, shape, device_facts(Target::kSm90a), pass);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      EXPECT_EQ(plan->family(), Family::kSm90a) << to_string(*plan);
      EXPECT_EQ(resources(spec, *plan).registers_per_thread,
                resources(wider, *plan).registers_per_thread);
    }
  }
}

// With few key tiles two warps of a processor wait for themselves.
TEST(Sm90aPlan, GradientsOfFewKvHeadsAreNotForTwoWarps) {
  for (const auto& [heads, kv_heads] : {std::pair{32, 8}, {28, 4}, {71, 1}}) {
    const ProblemShape shape{
        .batch = 1, .heads = heads, .kv_heads = kv_heads, .q_len = 500, .kv_len = 500};
    const auto plan =
        default_plan(plain_spec(), shape, device_facts(Target::kSm90a), Pass::kBackward);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    EXPECT_NE(plan->family(), Family::kSm80) << to_string(*plan);
  }
}

TEST(Sm90aPlan, BadTextIsAnError) {
  for (const char* text : {"sm90a forward sm_90a w2 k128 s2 b2 c1 g1",
                           "sm90a forward sm_90a w2 k128 s2 b2 c1 persistent persistent g1",
                           "sm90a forward sm_90a w2 k128 s2 b2 c1 sometimes g1"}) {
    EXPECT_FALSE(parse_plan(text).ok()) << text;
  }
}

// What decides in which order a row's keys are added up is the same in all of them.
TEST(Sm90aPlan, OfBatchInvariantSpecsTilesAreUnits) {
  AttentionSpec spec = plain_spec();
  spec.batch_invariant = true;
  const DeviceFacts& device = device_facts(Target::kSm90a);
  for (const int dim : {64, 128}) {
    spec.head_dim_qk = spec.head_dim_v = dim;
    const std::vector<KernelPlan> plans = legal_plans(spec, Family::kSm90a, device);
    EXPECT_GT(plans.size(), 1u) << dim;
    for (const KernelPlan& plan : plans) {
      const auto& tile = std::get<Sm90aPlan>(plan.tile);
      EXPECT_EQ(std::tuple(tile.tile_kv, tile.score_buffers, tile.cluster), std::tuple(64, 1, 1));
      EXPECT_FALSE(tile.frozen_max || tile.heads > 1 || tile.p_in_shared) << to_string(plan);
    }
  }
  // Nothing pads O to a multiple of 16.
  spec.head_dim_qk = spec.head_dim_v = 72;
  EXPECT_TRUE(legal_plans(spec, Family::kSm90a, device).empty());
  // Registers have no room for two outputs.
  spec.head_dim_qk = spec.head_dim_v = 256;
  EXPECT_TRUE(legal_plans(spec, Family::kSm90a, device).empty());
  EXPECT_FALSE(check_tile(spec, {}).ok());
  // Batch-invariant kernels have no dropout.
  spec.head_dim_qk = spec.head_dim_v = 64;
  EXPECT_FALSE(legal_plans(spec, Family::kSm90a, device).empty());
  spec.dropout.value = 0.25;
  EXPECT_TRUE(legal_plans(spec, Family::kSm90a, device).empty());
}

TEST(Sm90aPlan, LimitsAreKept) {
  const Sm90aPlan good;
  EXPECT_TRUE(check_tile(plain_spec(), good).ok());
  struct Case {
    const char* why;
    void (*spoil)(Sm90aPlan&);
  };
  for (const Case& c : {Case{"warpgroups", [](Sm90aPlan& t) { t.warpgroups = 4; }},
                        Case{"tile of a piece", [](Sm90aPlan& t) { t.tile_kv = 144; }},
                        Case{"widest tile", [](Sm90aPlan& t) { t.tile_kv = 288; }},
                        Case{"stages", [](Sm90aPlan& t) { t.stages = 1; }},
                        Case{"shared memory", [](Sm90aPlan& t) { t.stages = 4; }},
                        Case{"registers", [](Sm90aPlan& t) { t.warpgroups = 3; }},
                        Case{"cluster", [](Sm90aPlan& t) { t.cluster = 3; }},
                        Case{"turns of one",
                             [](Sm90aPlan& t) {
                               t.warpgroups = 1;
                               t.ping_pong = true;
                             }},
                        Case{"cluster and counter", [](Sm90aPlan& t) {
                               t.cluster = 2;
                               t.schedule = Sm90aPlan::Schedule::kLongestFirst;
                             }}}) {
    Sm90aPlan tile = good;
    c.spoil(tile);
    EXPECT_FALSE(check_tile(plain_spec(), tile).ok()) << c.why;
  }
}

// 35 KB are left beside Q and two stages of 64 keys: room for half of O, but for none of it beside
// 80 keys.
TEST(Sm90aPlan, OIsStagedInChunksWhereThereIsNoRoomForAllOfIt) {
  AttentionSpec spec = plain_spec();
  spec.head_dim_qk = spec.head_dim_v = 256;
  Sm90aPlan tile{.tile_kv = 64, .score_buffers = 1, .tma_store = false};
  const auto bytes = [&] { return resources(spec, hopper_plan(tile)).shared_memory_bytes; };
  const int without = bytes();
  tile.tma_store = true;
  EXPECT_TRUE(check_tile(spec, tile).ok());
  EXPECT_EQ(bytes() - without, 128 * 128 * 2);
  tile.tile_kv = 80;
  EXPECT_FALSE(check_tile(spec, tile).ok());
}

TEST(Sm90aPlan, PGoesThroughSharedMemoryWhereRegistersHaveNoRoom) {
  int through_shared = 0;
  for (KernelPlan plan : legal_plans(plain_spec(), Family::kSm90a, device_facts(Target::kSm90a))) {
    Sm90aPlan& tile = std::get<Sm90aPlan>(plan.tile);
    if (!tile.p_in_shared) continue;
    ++through_shared;
    tile.p_in_shared = false;
    EXPECT_FALSE(check_tile(plain_spec(), tile).ok()) << to_string(plan);
  }
  EXPECT_GT(through_shared, 0);
}

TEST(Sm90aPlan, PInSharedMemoryIsNotRecentred) {
  Sm90aPlan tile{.tile_kv = 64, .p_in_shared = true};
  EXPECT_TRUE(check_tile(plain_spec(), tile).ok());
  const auto by_key =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nscore: score + kv_idx\n", "t");
  ASSERT_TRUE(by_key.ok()) << render(by_key.error());
  EXPECT_FALSE(check_tile(*by_key, tile).ok());
  tile.frozen_max = false;
  EXPECT_TRUE(check_tile(*by_key, tile).ok());
}

TEST(Sm90aPlan, DropoutNeedsPiecesOf32Keys) {
  AttentionSpec spec = plain_spec();
  spec.dropout.value = 0.1;
  Sm90aPlan tile;
  EXPECT_TRUE(check_tile(spec, tile).ok());
  tile.tile_kv = 96;
  EXPECT_FALSE(check_tile(spec, tile).ok());
}

TEST(Sm90aPlan, ConsumersHaveTheRegistersThatThereAre) {
  const char* const consumer[] = {"= 256;", "= 232;", "= 160;"};
  Sm90aPlan tile;
  for (tile.warpgroups = 1; tile.warpgroups <= 3; ++tile.warpgroups) {
    EXPECT_THAT(
        sm90a_family().head_constants(plain_spec(), hopper_plan(tile)),
        testing::HasSubstr(std::string("int kConsumerRegisters ") + consumer[tile.warpgroups - 1]));
  }
}

TEST(Sm90aPlan, RecipeNamesTheFourTensorMaps) {
  Sm90aPlan tile;
  tile.cluster = 2;
  const Launch main = launch_recipe(plain_spec(), hopper_plan(tile)).main();
  EXPECT_EQ(main.threads, 384);
  EXPECT_EQ(main.tile, 128);
  EXPECT_TRUE(main.persistent);
  ASSERT_EQ(main.tensor_maps.size(), 4u);
  EXPECT_EQ(main.tensor_maps[0].box_rows, 64);  // Q of a warpgroup
  EXPECT_EQ(main.tensor_maps[1].box_rows, 64);  // half a K tile: the cluster's CTAs share it
  EXPECT_EQ(main.tensor_maps[3].box_columns, 64);
}

TEST(Sm90aPlan, EveryHeadDimOfTheFamilyHasPlans) {
  for (const auto& [qk, v] :
       {std::pair{64, 64}, {80, 80}, {96, 96}, {128, 128}, {192, 192}, {256, 256}, {192, 128}}) {
    AttentionSpec spec = plain_spec();
    spec.head_dim_qk = qk;
    spec.head_dim_v = v;
    EXPECT_FALSE(legal_plans(spec, Family::kSm90a, device_facts(Target::kSm90a)).empty())
        << qk << "/" << v;
    const auto plan =
        default_plan(spec, {.batch = 4, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096},
                     device_facts(Target::kSm90a));
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->family(), Family::kSm90a) << qk << "/" << v << ": " << to_string(*plan);
  }
}

AttentionSpec causal_spec(int head_dim) {
  auto spec =
      parse_spec("attune: 1\nname: causal\ndtype: bf16\nhead_dim: " + std::to_string(head_dim) +
                     "\nmask: causal\n",
                 "");
  EXPECT_TRUE(spec.ok());
  return *std::move(spec);
}

Sm90aPlan first_guess(const AttentionSpec& spec, const ProblemShape& shape) {
  return std::get<Sm90aPlan>(default_plan(spec, shape, device_facts(Target::kSm90a))->tile);
}

// As without a score: what a softcap adds fits beside O of 256 columns and one buffer of 64 keys.
TEST(Sm90aPlan, ASoftcapLeavesRoomForTheTileOfPlainScores) {
  const ProblemShape shape{.batch = 1, .heads = 16, .kv_heads = 8, .q_len = 8192, .kv_len = 8192};
  const auto with_score = [](const std::string& score) {
    auto spec = parse_spec(
        "attune: 1\nname: capped\ndtype: bf16\nhead_dim: 256\nmask: causal\nscore: " + score + "\n",
        "");
    EXPECT_TRUE(spec.ok());
    return *std::move(spec);
  };
  EXPECT_EQ(first_guess(with_score("50 * tanh(score / 50)"), shape),
            first_guess(causal_spec(256), shape));
  EXPECT_EQ(first_guess(with_score("score / (1 + abs(q_idx - kv_idx))"), shape).score_buffers, 2);
}

AttentionSpec spec_with(const std::string& mask, const std::string& tensor) {
  auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: " + mask +
                             "\ntensors: {" + tensor + "}\n",
                         "");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return *std::move(spec);
}

// Two heads of a short tile and a long one: head by head one of two CTAs gets both long ones.
TEST(LiveWork, TheBusiestCtaDependsOnTheOrderOfHeads) {
  const AttentionSpec spec = causal_spec(128);
  const ProblemShape shape{.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 128, .kv_len = 128};
  EXPECT_DOUBLE_EQ(live_work(spec, shape, {64, 64}, {.ctas = 2}).busiest, 4.0 / 3);
  EXPECT_DOUBLE_EQ(live_work(spec, shape, {64, 64}, {.ctas = 2, .group = 2}).busiest, 1);
  EXPECT_DOUBLE_EQ(live_work(spec, shape, {64, 64}, {.ctas = 2, .last_group = 2}).busiest, 1);
  EXPECT_DOUBLE_EQ(live_work(spec, shape, {64, 64}).share, 0.75);
}

TEST(Sm90aCost, KnowsWhichStaticOrdersAreEven) {
  // Five query tiles a head: 132 CTAs that take every 132nd item get every length in turn. With 48
  // a CTA meets only every twelfth length, and some get the long ones alone.
  const AttentionSpec spec = causal_spec(128);
  const auto prefers_static = [&](std::int64_t batch, std::int64_t length) {
    const auto cost = [&](const char* schedule) {
      const auto plan = parse_plan(
          fmt::format("sm90a forward sm_90a w2 k64 s4 b1 qreg c1 {} g16 frozen tma", schedule));
      return cost_us(spec, plan.value(), {batch, 32, 8, length, length},
                     device_facts(Target::kSm90a));
    };
    return cost("persistent") < cost("longest");
  };
  EXPECT_TRUE(prefers_static(8, 640));
  EXPECT_FALSE(prefers_static(1, 6144));
}

// Sixty-four drafted tokens of four heads a K/V head: on an H200 254 us with a head an item, 193
// so.
TEST(Sm90aCost, HeadsShareItemsWhereOneHasTooFewQueries) {
  const AttentionSpec spec = causal_spec(128);
  EXPECT_GT(first_guess(spec, {16, 32, 8, 64, 8192}).heads, 1);
  EXPECT_EQ(first_guess(spec, {16, 32, 32, 64, 8192}).heads, 1);
  EXPECT_EQ(first_guess(spec, {2, 16, 16, 8192, 8192}).heads, 1);
}

// What lists items or makes ranges runs before the kernel anyway, and spares it a memset.
TEST(Sm90aPlan, ALaunchInFrontZeroesTheCounter) {
  const auto main_of = [](const char* lines) {
    const auto spec =
        parse_spec(fmt::format("attune: 1\nname: f\ndtype: bf16\nhead_dim: 64\n{}\n", lines), "");
    const KernelPlan plan = hopper_plan(
        {.tile_kv = 64, .score_buffers = 1, .schedule = Sm90aPlan::Schedule::kLongestFirst});
    return launch_recipe(spec.value(), plan).main();
  };
  EXPECT_FALSE(main_of("mask: causal").overlaps_previous);
  EXPECT_FALSE(main_of("mask: causal").zeroed.empty());
  for (const char* lines :
       {"mask: causal\nlayout: thd",
        "mask: document(doc)\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}"}) {
    EXPECT_TRUE(main_of(lines).overlaps_previous) << lines;
    EXPECT_TRUE(main_of(lines).zeroed.empty()) << lines;
  }
}

TEST(Sm90aPlan, HeadsWithMasksOfTheirOwnAreNotAbreast) {
  const auto check_mask = [](const char* mask) {
    const auto spec = parse_spec(fmt::format("attune: 1\nname: h\ndtype: bf16\nhead_dim: 64\n"
                                             "mask: {}\n",
                                             mask),
                                 "");
    Sm90aPlan tile{.tile_kv = 64, .score_buffers = 1, .heads = 2};
    return check_tile(spec.value(), tile).ok();
  };
  EXPECT_TRUE(check_mask("causal"));
  EXPECT_TRUE(check_mask("kv_idx < 64 * h_kv + q_idx"));
  EXPECT_FALSE(check_mask("kv_idx < 64 * h + q_idx"));
}

TEST(Sm90aPlan, AWarpHasRowsOfOneHead) {
  const AttentionSpec spec = causal_spec(64);
  const auto is_legal = [&](int warpgroups, int heads) {
    return check_tile(
               spec,
               Sm90aPlan{
                   .warpgroups = warpgroups, .tile_kv = 64, .score_buffers = 1, .heads = heads})
        .ok();
  };
  EXPECT_TRUE(is_legal(1, 4) && is_legal(2, 4) && is_legal(2, 8) && is_legal(3, 6));
  EXPECT_FALSE(is_legal(1, 3) || is_legal(1, 8) || is_legal(2, 3) || is_legal(2, 6));
  for (const std::string_view heads : {"heads", "heads4"}) {
    const std::string tile = "k64 s2 b1 c1 persistent g1 ";
    EXPECT_TRUE(parse_plan(fmt::format("sm90a forward sm_90a w2 {}{}", tile, heads)).ok());
    EXPECT_FALSE(parse_plan(fmt::format("sm90a forward sm_90a w0 {}{}", tile, heads)).ok());
  }
}

// A chunk of 512 queries beside single tokens: 17 queries a sequence are all that the shape says.
TEST(Sm90aCost, SingleTokensOfAGroupShareAnItem) {
  const auto spec = parse_spec(
      "attune: 1\nname: p\ndtype: bf16\nhead_dim: 128\nlayout: paged\nmask: causal\n", "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  EXPECT_EQ(first_guess(*spec, {32, 32, 8, 543, 8192}).heads, 4);
  EXPECT_EQ(first_guess(*spec, {128, 64, 8, 639, 8192}).heads, 8);
}

// What is fetched ahead of an item is worth as much at any length, so it counts where items are
// short: measured 7 % at 512 tokens, nothing at 16384.
TEST(Sm90aCost, AThirdStagePaysMostWhereItemsAreShort) {
  const AttentionSpec spec = causal_spec(64);
  const DeviceFacts device = device_facts(Target::kSm90a);
  const auto gain = [&](std::int64_t length) {
    const ProblemShape shape{16384 / length, 32, 32, length, length};
    const auto cost = [&](const char* text) {
      return cost_us(spec, parse_plan(text).value(), shape, device);
    };
    return cost("sm90a forward sm_90a w2 k128 s2 b2 qreg c1 longest g0 frozen tma") /
           cost("sm90a forward sm_90a w2 k128 s3 b2 qreg c1 longest g0 frozen tma");
  };
  EXPECT_GT(gain(512), 1.02);
  EXPECT_LT(gain(16384), 1.01);
}

// Sixty-four drafted tokens behind lengths of which a few are long: a CTA an item waits for these,
// and three in four keys are read for nobody. An H200 takes 183 us for the first and 98 for the
// second.
TEST(Sm90aCost, KnowsThatBatchEntriesDifferInLength) {
  const AttentionSpec spec = spec_with(
      "kv_idx >= first[b]", "first: {dtype: int32, dims: [batch], sample: 'lengths(0, 0.9)'}");
  AttentionSpec given = spec;
  expr::TensorValues first{.sizes = {16}, .values = std::vector<double>(16, 7000)};
  first.values[3] = first.values[9] = 0;
  given.samples = {{.kind = SampleKind::kGiven,
                    .given = std::make_shared<const expr::TensorValues>(std::move(first))}};
  const ProblemShape shape{16, 32, 8, 64, 8192};
  const auto cost = [&](const char* text) {
    return cost_us(given, parse_plan(text).value(), shape, device_facts(Target::kSm90a));
  };
  EXPECT_GT(cost("sm90a forward sm_90a w2 k64 s2 b2 qreg c1 single g1 frozen tma"),
            1.5 * cost("sm90a forward sm_90a w2 k128 s2 b2 qreg c1 longest g16 frozen tma heads"));
  EXPECT_GT(first_guess(given, shape).heads, 1);
}

// Of blocks of 64 by 64, a fourth of which lives, a tile of three warpgroups has work for one of
// them mostly: on an H200 one warpgroup takes 612 us, three 686.
TEST(Sm90aCost, PartsOfATileThatAreDeadCostLess) {
  const AttentionSpec blocks = spec_with(
      "block_sparse(blocks, 64)", "blocks: {dtype: bool, dims: [128, 128], sample: chance(0.1)}");
  const ProblemShape shape{2, 16, 16, 8192, 8192};
  const LiveWork wide = live_work(blocks, shape, {192, 64, 64});
  EXPECT_NEAR(wide.live_parts, 0.1 / (1 - 0.9 * 0.9 * 0.9), 0.05);
  EXPECT_EQ(wide.full_parts, 1);
  EXPECT_LT(first_guess(blocks, shape).warpgroups, 3);
  // Two labels without order leave no full part of them.
  const AttentionSpec labels =
      spec_with("label[b, q_idx] == label[b, kv_idx]",
                "label: {dtype: int32, dims: [batch, kv_len], sample: 'uniform(0, 7)'}");
  // The last tile has two parts.
  EXPECT_NEAR(live_work(labels, shape, {192, 64, 64}).live_parts, 1, 0.01);
  EXPECT_EQ(live_work(labels, shape, {192, 64, 64}).full_parts, 0);
}

// Heads abreast have the same queries, so that none of them waits: an H200 decodes 333 keys in 14.8
// us with the decode family, and in 18.1 so.
TEST(Sm90aCost, HeadsAbreastAreNoDeadParts) {
  const AttentionSpec spec = spec_with(
      "document(doc)", "doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=1024)}");
  const auto guess = default_plan(spec, {2, 32, 8, 1, 333}, device_facts(Target::kSm90a));
  ASSERT_TRUE(guess.ok()) << render(guess.error());
  EXPECT_EQ(guess->family(), Family::kDecode);
}

TEST(Sm90aCost, OneWarpgroupIsForNobodyWhoHasWorkForTwo) {
  for (const int head_dim : {64, 128, 256}) {
    EXPECT_GT(first_guess(causal_spec(head_dim), {1, 16, 8, 6144, 6144}).warpgroups, 1) << head_dim;
  }
}

// A window's partial tiles: measured 5 to 11 % slower with two of 128 keys.
TEST(Sm90aCost, MasksAreForThreeWarpgroups) {
  const auto spec = parse_spec(
      "attune: 1\nname: w\ndtype: bf16\nhead_dim: 128\nmask: 0 <= q_idx - kv_idx < 1024\n", "");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(first_guess(*spec, {2, 16, 16, 8192, 8192}).warpgroups, 3);
}

// Measured: ALiBi under a causal mask takes two warpgroups 1.04 to 1.13 of their time, a softcap of
// 512 tokens in two pieces 1.17, causal tiles of 96 keys in two pieces 1.04 of 128's at d 64.
TEST(Sm90aCost, ShortOrMaskedScoresAreNotForTwoPieces) {
  const auto guess = [](const std::string& lines, const ProblemShape& shape) {
    const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nmask: causal\n" + lines, "");
    return first_guess(spec.value(), shape);
  };
  for (const std::int64_t length : {512, 8192}) {
    const Sm90aPlan alibi =
        guess("head_dim: 128\nscore: score + (kv_idx - q_idx) * exp2(-(h + 1) / 2)\n",
              {16384 / length, 16, 16, length, length});
    EXPECT_EQ(alibi.warpgroups, 3) << length;
    EXPECT_EQ(alibi.tile_kv, 64) << length;
  }
  const Sm90aPlan cap =
      guess("head_dim: 128\nscore: 50 * tanh(score / 50)\n", {32, 16, 16, 512, 512});
  EXPECT_EQ(cap.score_buffers, 1);
  EXPECT_EQ(cap.warpgroups, 3);
  EXPECT_EQ(guess("head_dim: 64\n", {16, 32, 32, 1024, 1024}).tile_kv, 128);
}

// A warpgroup alone draws K and V twice as often, which rows that begin amid a sector do not allow.
TEST(Sm90aPlan, SplitRowsAreNotDrawnByOneWarpgroup) {
  const auto expected_us = [](int head_dim, int warpgroups) {
    const Sm90aPlan tile{.warpgroups = warpgroups, .schedule = Sm90aPlan::Schedule::kSingle};
    return cost_us(plain_spec(head_dim), hopper_plan(tile),
                   {.batch = 3, .heads = 32, .kv_heads = 32, .q_len = 256, .kv_len = 4096},
                   device_facts(Target::kSm90a));
  };
  EXPECT_GT(expected_us(72, 1), 1.3 * expected_us(72, 2));
  EXPECT_LT(expected_us(72, 2), 1.1 * expected_us(80, 2));
  EXPECT_LT(expected_us(80, 1), 1.2 * expected_us(80, 2));
}

}  // namespace
}  // namespace attune
