#include "generator/plan/plan.hpp"

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
    const auto of_plan =
        plan.by_runs ? widest_workspace(worked_spec(*spec, plan), Pass::kForward, device.target)
                     : widest;
    EXPECT_TRUE(covers(of_plan, recipe.workspace)) << to_string(plan);
    EXPECT_EQ(recipe.launches.front().item, WorkItem::kRangePairs);
    EXPECT_EQ(recipe.launches.front().symbol, recipe.symbol + "_ranges");
    regions.insert(recipe.workspace.size() - (plan.by_runs ? 2 : 0));
  }
  EXPECT_EQ(regions, (std::set<std::size_t>{1, 2, 3}))
      << "some plans have a counter, too, and some results and counters of pieces";
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
