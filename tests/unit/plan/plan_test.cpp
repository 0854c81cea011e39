#include "generator/plan/plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "generator/plan/family.hpp"
#include "generator/spec/library.hpp"
#include "generator/spec/spec.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

constexpr Target kGpuTargets[] = {Target::kSm80,  Target::kSm86,  Target::kSm89,
                                  Target::kSm90a, Target::kSm100, Target::kSm120};

KernelPlan sm80_plan(Sm80Plan tile, Target target = Target::kSm80) {
  return {.pass = Pass::kForward, .target = target, .tile = tile};
}

TEST(Plan, TextRoundTrips) {
  const KernelPlan plan = sm80_plan({.tile_q = 64,
                                     .tile_kv = 32,
                                     .stages = 3,
                                     .warps = 2,
                                     .q_in_registers = true,
                                     .frozen_max = false,
                                     .chunk = 16,
                                     .unroll = 2},
                                    Target::kSm89);
  EXPECT_EQ(to_string(plan), "sm80 forward sm_89 q64 k32 s3 w2 c16 u2 qreg");
  const auto parsed = parse_plan(to_string(plan));
  ASSERT_TRUE(parsed.ok()) << render(parsed.error());
  EXPECT_EQ(*parsed, plan);
}

TEST(Plan, BadTextIsAnError) {
  for (const char* text :
       {"", "sm80", "sm80 forward", "sm70 forward sm_80 q64 k32 s2 w2 c16 u1",
        "sm80 sideways sm_80 q64 k32 s2 w2 c16 u1", "sm80 forward sm_81 q64 k32 s2 w2 c16 u1",
        "sm80 forward sm_80 q64 k32 s2 w2 c16", "sm80 forward sm_80 q64 k32 s2 w2 c16 u1 u1",
        "sm80 forward sm_80 q64 k32 s2 w2 c16 u1 x", "sm80 forward sm_80 q k32 s2 w2 c16 u1",
        "sm80 forward sm_80 q-64 k32 s2 w2 c16 u1",
        "sm80 forward sm_80 q99999999999 k32 s2 w2 c16 u1",
        "sm80 forward sm_80 k32 q64 s2 w2 c16 u1"}) {
    const auto plan = parse_plan(text);
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_EQ(plan.error().id, "plan-bad-text") << text;
    EXPECT_EQ(plan.error().kind, ErrorKind::kBadInput) << text;
  }
}

TEST(Plan, NoTwoLegalPlansMakeTheSameChoices) {
  const AttentionSpec spec = plain_spec(128);
  for (const auto& [family, target] : {std::pair{Family::kSm80, Target::kSm80},
                                       {Family::kSm90a, Target::kSm90a},
                                       {Family::kCpu, Target::kCpu}}) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const FamilyOperations* operations = family_operations(family, pass);
      if (operations == nullptr) continue;
      const auto plans = legal_plans(spec, family, device_facts(target), pass);
      std::set<std::vector<int>> choices;
      for (const KernelPlan& plan : plans) choices.insert(operations->choices(plan));
      EXPECT_EQ(choices.size(), plans.size()) << to_string(family) << " " << to_string(pass);
    }
  }
}

// What blocks add to in the order in which they come is not the same to the bit at every launch.
// CTAs take turns at sums that they share: two more barriers each of three, and where they are.
TEST(Plan, DeterministicBackwardPlansAddUpInTurns) {
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

// Where heads are short, starting a CTA for each key tile costs more than taking them off a
// counter.
TEST(Plan, ShortNarrowHeadsTakeKeyTilesOffACounter) {
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
TEST(Plan, NarrowHeadsKeysAreLoadedApartWhereItemsAreShort) {
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
}

// Where the sm90a family's five products fit they are faster than the ordered kernels' seven.
TEST(Plan, OrderedKernelsServeWhatFiveProductsCannot) {
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

// Both of its kernels are asked for what their layouts take; the compiler checks that it is enough.
TEST(Plan, OrderedPlansFitAndRoundTrip) {
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
TEST(Plan, WalksOfFewKeyTilesAreCut) {
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
TEST(Plan, OrderedPlansKeepBothGradientsOfNarrowHeads) {
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

TEST(Plan, DeterministicPlansLearnWhatTheyAddUpInOrder) {
  const auto parsed = [](const std::string& more) {
    return parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n" + more, "t").value();
  };
  const auto in_order = [&](const std::string& learned, Target target) {
    EXPECT_TRUE(families_for(parsed(learned), target, Pass::kBackward).ok()) << learned;
    return families_for(parsed(learned + "deterministic: true\n"), target, Pass::kBackward);
  };
  for (const char* learned :
       {"tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\nscore: score + slope[h]\n",
        "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\nsink: sinks[h]\n",
        "tensors: {t: {dtype: float32, dims: [heads, 4095], grad: true}}\n"
        "score: score + t[h, max(0, min(4094, kv_idx - q_idx + 2047))]\n"}) {
    for (const Target target : {Target::kSm80, Target::kSm90a, Target::kCpu}) {
      EXPECT_TRUE(in_order(learned, target).ok()) << learned << to_string(target);
    }
  }
  const auto own = in_order(
      "tensors: {bias: {dtype: float32, dims: [batch, heads, q_len, kv_len], grad: true}}\n"
      "score: score + bias[b, h, q_idx, kv_idx]\n",
      Target::kSm90a);
  EXPECT_TRUE(own.ok()) << "nobody else adds to an element";
  for (const char* shared :
       {"[q_len, kv_len]|[q_idx, kv_idx]", "[heads, q_len, kv_len]|[h, q_idx, kv_idx]",
        "[batch, q_len, kv_len]|[b, q_idx, kv_idx]"}) {
    const std::string_view both(shared);
    const auto bar = both.find('|');
    const auto families =
        in_order(fmt::format("tensors: {{bias: {{dtype: float32, dims: {}, grad: true}}}}\n"
                             "score: score + bias{}\n",
                             both.substr(0, bar), both.substr(bar + 1)),
                 Target::kSm90a);
    ASSERT_TRUE(families.ok()) << shared;
    EXPECT_EQ(*families, std::vector{Family::kSm80}) << "its items take all that share an element";
  }
  for (const char* shared :
       {"tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"
        "score: score + bias[q_idx // 2, kv_idx]\n",
        "tensors: {bias: {dtype: float32, dims: [batch, heads, q_len, kv_len], grad: true}}\n"
        "score: score + bias[b, h, q_idx, kv_idx] * bias[b, h, q_idx, 0]\n",
        "tensors: {t: {dtype: float32, dims: [heads, 4097], grad: true}}\n"
        "score: score + t[h, max(0, min(4096, kv_idx - q_idx + 2047))]\n"}) {
    const auto none = in_order(shared, Target::kSm80);
    ASSERT_FALSE(none.ok()) << shared;
    EXPECT_EQ(none.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(none.error().message.find("`deterministic: true` rules out"), std::string::npos)
        << none.error().message;
  }
  EXPECT_FALSE(in_order("tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"
                        "score: score + bias[q_idx, kv_idx]\n",
                        Target::kCpu)
                   .ok())
      << "every head adds to it";
}

// On GPUs 16 keys of a head have sums of their own, and a last launch adds them up; what a warp's
// registers do not hold is added to as it comes, unless the spec says otherwise.
TEST(Plan, SumsOfWhatIsLearnedLieInTheWorkspace) {
  constexpr ProblemShape kShape{
      .batch = 3, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 1000};
  const auto bytes = [&](int bins, bool in_order, Target target) {
    const std::string yaml = fmt::format(
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\ndeterministic: {}\n"
        "tensors: {{t: {{dtype: float32, dims: [heads, {}], grad: true}}}}\n"
        "score: score + t[h, max(0, min({}, kv_idx - q_idx))]\n",
        in_order, bins, bins - 1);
    const AttentionSpec spec = parse_spec(yaml, "t").value();
    std::int64_t of_sums = -1;
    const std::vector<Family> families = families_for(spec, target, Pass::kBackward).value();
    for (const Family family : families) {
      for (const KernelPlan& plan :
           legal_plans(spec, family, device_facts(target), Pass::kBackward)) {
        const LaunchRecipe recipe = launch_recipe(spec, plan);
        const bool has_last = recipe.launches.back().symbol.ends_with("_learned");
        std::int64_t found = 0;
        for (const WorkspaceRegion& region : recipe.workspace) {
          if (region.content == WorkspaceRegion::Content::kLearnedSums)
            found = region_bytes(spec, region, kShape);
        }
        EXPECT_EQ(has_last, found > 0) << to_string(plan);
        EXPECT_TRUE(of_sums < 0 || of_sums == found) << to_string(plan);
        EXPECT_TRUE(covers(widest_workspace(spec, Pass::kBackward, target), recipe.workspace))
            << to_string(plan);
        of_sums = found;
      }
    }
    return of_sums;
  };
  for (const Target target : {Target::kSm80, Target::kSm90a}) {
    for (const int bins : {2, 32, 64}) {
      for (const bool in_order : {false, true}) {
        EXPECT_EQ(bytes(bins, in_order, target), 4 * 3 * 8 * 63 * bins) << bins;
      }
    }
    EXPECT_EQ(bytes(65, false, target), 0);
    EXPECT_EQ(bytes(65, true, target), 4 * 3 * 8 * 63 * 65);
  }
}

// Barriers, statistics and padding take little beside them.
TEST(Plan, MatricesFillTheSharedMemory) {
  constexpr int kRestBytes = 12 * 1024;
  for (const int head_dim : {64, 80, 128}) {
    const AttentionSpec spec = plain_spec(head_dim);
    for (const auto& [family, target] :
         {std::pair{Family::kSm80, Target::kSm80}, {Family::kSm90a, Target::kSm90a}}) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        for (const KernelPlan& plan : legal_plans(spec, family, device_facts(target), pass)) {
          int bytes = 0;
          for (const SharedMatrix& m : shared_matrices(spec, plan))
            bytes += m.stages * m.rows * m.columns * element_bytes(spec.dtype);
          const int all = resources(spec, plan).shared_memory_bytes;
          EXPECT_LE(bytes, all) << to_string(plan);
          // What the sm80 family's output takes at the end may be more than the rest.
          if (family == Family::kSm90a || pass == Pass::kBackward) {
            EXPECT_GE(bytes + kRestBytes, all) << to_string(plan);
          }
        }
      }
    }
  }
}

TEST(Plan, EveryLegalPlanFitsRoundTripsAndHasItsOwnSymbol) {
  for (const int head_dim : {16, 64, 80, 128, 256}) {
    const AttentionSpec spec = plain_spec(head_dim);
    for (const Target target : kGpuTargets) {
      const DeviceFacts device = device_facts(target);
      const auto plans = legal_plans(spec, Family::kSm80, device);
      EXPECT_FALSE(plans.empty()) << head_dim << to_string(target);
      EXPECT_LE(plans.size(), 200u);
      std::set<std::string> symbols;
      for (const KernelPlan& plan : plans) {
        EXPECT_TRUE(check_plan(spec, plan, device).ok());
        const PlanResources needs = resources(spec, plan);
        EXPECT_LE(needs.shared_memory_bytes, device.shared_memory_per_block_bytes);
        EXPECT_LE(needs.registers_per_thread * needs.threads, device.registers_per_processor);
        const auto parsed = parse_plan(to_string(plan));
        ASSERT_TRUE(parsed.ok()) << to_string(plan);
        EXPECT_EQ(*parsed, plan);
        const LaunchRecipe recipe = launch_recipe(spec, plan);
        EXPECT_EQ(recipe.main().threads, needs.threads);
        EXPECT_EQ(recipe.main().shared_memory_bytes, needs.shared_memory_bytes);
        EXPECT_TRUE(symbols.insert(recipe.symbol).second) << recipe.symbol;
      }
    }
  }
}

TEST(Plan, ChecksNameTheLimitThatIsBroken) {
  const struct {
    Sm80Plan tile;
    int head_dim;
    const char* reason;
  } cases[] = {
      {{.tile_q = 128, .warps = 2}, 64, "16 or 32"},
      {{.tile_kv = 48}, 64, "kv tile"},
      {{.stages = 1}, 64, "stages"},
      {{.chunk = 24}, 64, "chunk"},
      {{.tile_kv = 32, .chunk = 64}, 64, "chunk"},
      {{.unroll = 3}, 64, "loop body"},
      {{.tile_kv = 256, .stages = 4}, 256, "shared memory"},
      {{.tile_q = 128, .tile_kv = 32, .warps = 4}, 256, "registers"},
  };
  for (const auto& [tile, head_dim, reason] : cases) {
    const auto status =
        check_plan(plain_spec(head_dim), sm80_plan(tile), device_facts(Target::kSm80));
    ASSERT_FALSE(status.ok()) << reason;
    EXPECT_EQ(status.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(status.error().message.find(reason), std::string::npos) << status.error().message;
  }
}

TEST(Plan, DropoutNeedsChunksOfOneDraw) {
  AttentionSpec spec = plain_spec(64);
  spec.dropout.value = 0.1;
  const DeviceFacts device = device_facts(Target::kSm80);
  for (const KernelPlan& plan : legal_plans(spec, Family::kSm80, device)) {
    EXPECT_EQ(std::get<Sm80Plan>(plan.tile).chunk % 32, 0);
  }
  EXPECT_FALSE(check_plan(spec, sm80_plan({.chunk = 16}), device).ok());
}

TEST(Plan, FamiliesSayWhyTheyCannot) {
  AttentionSpec spec = plain_spec();
  spec.dtype = DType::kFp8E4m3;
  const auto families = families_for(spec, Target::kSm80);
  ASSERT_FALSE(families.ok());
  EXPECT_NE(families.error().message.find("fp8_e4m3"), std::string::npos)
      << families.error().message;
  EXPECT_FALSE(families_for(plain_spec(264), Target::kSm80).ok());
}

TEST(Plan, CostGrowsWithTheProblem) {
  const AttentionSpec spec = plain_spec();
  const DeviceFacts device = device_facts(Target::kSm80);
  const KernelPlan plan = sm80_plan({});
  double last = 0;
  for (const std::int64_t length : {1, 512, 2048, 8192, 32768}) {
    const double us = cost_us(
        spec, plan, {.batch = 1, .heads = 16, .kv_heads = 16, .q_len = length, .kv_len = length},
        device);
    EXPECT_GT(us, last) << length;
    last = us;
  }
}

TEST(Plan, EveryLibrarySpecHasADefaultPlanOnEveryGpu) {
  for (const LibrarySpec& library : spec_library()) {
    const auto spec = parse_spec(library.text, library.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const ProblemShape shape{
        .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 2048, .kv_len = 2048};
    for (const Target target : kGpuTargets) {
      const auto plan = default_plan(*spec, shape, device_facts(target));
      ASSERT_TRUE(plan.ok()) << library.name << ": " << render(plan.error());
      EXPECT_TRUE(check_plan(*spec, *plan, device_facts(target)).ok());
      EXPECT_EQ(plan->target, target);
    }
  }
}

TEST(Plan, TheWidestWorkspaceCoversEveryPlans) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\ntensors:\n"
      "  doc: {dtype: int32, dims: [batch, kv_len]}\nmask: causal and document(doc)\n",
      "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const DeviceFacts device = device_facts(Target::kSm90a);
  const auto widest = widest_workspace(*spec, Pass::kForward, device.target);
  const auto plans =
      plans_by_cost(*spec, {.heads = 8, .kv_heads = 8, .q_len = 512, .kv_len = 512}, device);
  ASSERT_TRUE(plans.ok()) << render(plans.error());
  std::set<std::size_t> regions;
  for (const KernelPlan& plan : *plans) {
    const LaunchRecipe recipe = launch_recipe(*spec, plan);
    EXPECT_TRUE(covers(widest, recipe.workspace)) << to_string(plan);
    EXPECT_EQ(recipe.launches.front().item, WorkItem::kRangePairs);
    EXPECT_EQ(recipe.launches.front().symbol, recipe.symbol + "_ranges");
    regions.insert(recipe.workspace.size());
  }
  EXPECT_EQ(regions, (std::set<std::size_t>{1, 2, 3}))
      << "some plans have a counter, too, and some results and counters of pieces";
}

TEST(Plan, TheWidestWorkspaceCoversWhatIsLearned) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: fp32\nhead_dim: 40\ntensors:\n"
      "  bias: {dtype: float32, dims: [heads, 32], grad: true}\n"
      "score: score + bias[h, min(31, abs(q_idx - kv_idx))]\n",
      "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  DeviceFacts device = device_facts(Target::kCpu);
  for (const int registers : {16, 32}) {
    device.registers_per_processor = registers;
    const auto widest = widest_workspace(*spec, Pass::kBackward, Target::kCpu);
    const auto plans = legal_plans(*spec, Family::kCpu, device, Pass::kBackward);
    EXPECT_FALSE(plans.empty());
    for (const KernelPlan& plan : plans) {
      EXPECT_TRUE(covers(widest, launch_recipe(*spec, plan).workspace)) << to_string(plan);
      const auto parsed = parse_plan(to_string(plan));
      ASSERT_TRUE(parsed.ok()) << render(parsed.error());
      EXPECT_EQ(*parsed, plan);
    }
  }
}

TEST(Plan, StridesThatTheTensorUnitCannotWalkAreForAnotherFamily) {
  const ProblemShape shape{.heads = 8, .kv_heads = 8, .q_len = 512, .kv_len = 512};
  const DeviceFacts device = device_facts(Target::kSm90a);
  const auto plan = plan_for_any_strides(plain_spec(), Pass::kForward, shape, device);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  EXPECT_FALSE(launch_recipe(plain_spec(), *plan).needs_tensor_maps());
  EXPECT_TRUE(
      launch_recipe(plain_spec(), *default_plan(plain_spec(), shape, device)).needs_tensor_maps());
}

}  // namespace
}  // namespace attune
