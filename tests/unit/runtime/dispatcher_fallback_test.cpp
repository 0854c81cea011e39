// What answers where a plan's code cannot be built or loaded.
#include "tests/unit/runtime/dispatcher_fixture.hpp"

namespace attune::runtime_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST_F(DispatcherTest, APlanThatCannotBeBuiltReplacesNothing) {
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle held = get(dispatcher);
  record_winner(other_plan());
  compiler_->broken = true;
  const Status failed = dispatcher.refresh();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().id, "compile-failed");
  EXPECT_EQ(held->version().choice.plan, model_plan());
  EXPECT_THAT(plans_failed(*held), ElementsAre(to_string(other_plan())));
  EXPECT_THAT(held->failed_plans()[0].reason, HasSubstr("compile-failed"));
  compiler_->broken = false;
  EXPECT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(held->version().choice.plan, other_plan());
  EXPECT_THAT(plans_failed(*held), IsEmpty());
}

TEST_F(DispatcherTest, AWinnersCompilerMakesItsCodeAlsoOfAPlanThatIsLoaded) {
  const auto other = std::make_shared<CompilerState>();
  other->version = "other 2";
  Dispatcher dispatcher(workshop(opener_of({compiler_, other})), false);
  const Handle held = get(dispatcher);
  EXPECT_EQ(held->version().code.compiler, "fake 1");
  record_winner(model_plan(), kShape, 10, "fake", "other 2");
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(held->version().code.compiler, "other 2");
  EXPECT_EQ(launched(*held).symbol, symbol(model_plan()));
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(dispatcher.counters().replacements, 1u);
}

TEST_F(DispatcherTest, AWinnerThatNoCompilerHereCanBuildGivesWayToTheCostModel) {
  // The one that was measured is not here, and the one that is here fails at the plan.
  record_winner(other_plan(), kShape, 10, "fake", "other 2");
  compiler_->fails_at = symbol(other_plan());
  Dispatcher dispatcher(workshop(opener_of({compiler_})), false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->version().choice.source, PlanSource::kCostModel);
  EXPECT_EQ(launched(*kernel).symbol, symbol(model_plan()));
  EXPECT_THAT(plans_failed(*kernel), ElementsAre(to_string(other_plan())));
}

// The first of `by_cost` that is another tile than the first one's, of other threads, or needs
// fewer registers.
KernelPlan next_to_try(const AttentionSpec& spec, const std::vector<KernelPlan>& by_cost) {
  const TileShape failed = tile_shape(by_cost.front());
  const PlanResources needed = resources(spec, by_cost.front());
  for (const KernelPlan& plan : by_cost) {
    const TileShape tile = tile_shape(plan);
    const PlanResources needs = resources(spec, plan);
    if (plan.family() != by_cost.front().family() || tile.q != failed.q || tile.kv != failed.kv ||
        needs.threads != needed.threads || needs.registers_per_thread < needed.registers_per_thread)
      return plan;
  }
  ADD_FAILURE() << "all plans are alike";
  return {};
}

TEST_F(DispatcherTest, TheCostModelsPlanGivesWayToItsNextTileWhereTheCompilerFailsAtIt) {
  compiler_->fails_at = symbol(model_plan());
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  const auto plans = plans_by_cost(*spec_, kShape, device_facts(Target::kSm80));
  EXPECT_EQ(kernel->version().choice.source, PlanSource::kCostModel);
  EXPECT_EQ(launched(*kernel).symbol, symbol(next_to_try(*spec_, *plans)));
  EXPECT_THAT(plans_failed(*kernel), ElementsAre(to_string(model_plan())));
}

// The first of Hopper's backward plans for sequences this short are of one tile: with K and V in
// registers the compiler may run out of them.
TEST_F(DispatcherTest, APlanGivesWayToTheSameTileWithFewerRegisters) {
  const DeviceFacts facts = device_facts(Target::kSm90a);
  const ProblemShape shape = {
      .batch = 4, .heads = 32, .kv_heads = 32, .q_len = 1024, .kv_len = 1024};
  const auto plans = plans_by_cost(*spec_, shape, facts, Pass::kBackward);
  ASSERT_TRUE(plans.ok());
  const KernelPlan failing = plans->front(), next = next_to_try(*spec_, *plans);
  ASSERT_EQ(next.family(), failing.family());
  ASSERT_EQ(tile_shape(next).q, tile_shape(failing).q);
  ASSERT_EQ(tile_shape(next).kv, tile_shape(failing).kv);
  compiler_->fails_at = symbol(failing);
  const auto on_hopper =
      std::make_shared<Workshop>(std::make_unique<FakeDevice>("fake", Target::kSm90a),
                                 Overlay::open({.user_file = cache_file()}), opener(compiler_));
  Dispatcher dispatcher(on_hopper, false);
  const Handle kernel = get(dispatcher, shape, Pass::kBackward);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(launched(*kernel).symbol, symbol(next));
  EXPECT_THAT(plans_failed(*kernel), ElementsAre(to_string(failing)));
}

TEST_F(DispatcherTest, AWinnerThatCannotBeBuiltGivesWayToTheNextUntilItCan) {
  record_winner(other_plan(0), kShape, 10);
  record_winner(other_plan(1), kShape, 12);
  compiler_->fails_at = symbol(other_plan(0));
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan(1)));
  EXPECT_THAT(plans_failed(*kernel), ElementsAre(to_string(other_plan(0))));
  EXPECT_FALSE(dispatcher.refresh().ok());
  EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan(1)));
  EXPECT_EQ(dispatcher.counters().replacements, 0u);
  compiler_->fails_at = "";
  EXPECT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan(0)));
  EXPECT_THAT(plans_failed(*kernel), IsEmpty());
}

TEST_F(DispatcherTest, APlanOfAnotherVersionGivesWayToTheNext) {
  record_winner(other_plan(1), kShape, 12);
  {
    auto store = open_store(cache_file());
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE((*store)
                    ->record({.spec_hash = spec_hash(*spec_),
                              .device = FakeDevice("fake").identity(),
                              .shape = kShape,
                              .protocol = std::string(kMeasurementProtocol)},
                             {.plan = "sm80 forward sm_80 of times to come",
                              .build_digest = "future",
                              .median_us = 5,
                              .samples = 10})
                    .ok());
  }
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan(1)));
  EXPECT_THAT(plans_failed(*kernel), ElementsAre("sm80 forward sm_80 of times to come"));
  EXPECT_THAT(kernel->failed_plans()[0].reason, HasSubstr("plan-bad-text"));
}

TEST_F(DispatcherTest, StoredCodeThatDoesNotLoadIsCompiledAfreshElseTheNextServes) {
  record_winner(other_plan(0), kShape, 10);
  record_winner(other_plan(1), kShape, 12);
  {
    auto store = open_store(cache_file());
    ASSERT_TRUE(store.ok());
    FakeCompiler same(compiler_);
    const auto key = build_key(*spec_, other_plan(0), same);
    ASSERT_TRUE(key.ok());
    ASSERT_TRUE((*store)->put_code(*key, {.image = {'?'}}).ok());
  }
  {
    Dispatcher dispatcher(workshop(opener(compiler_)), false);
    const Handle kernel = get(dispatcher);
    ASSERT_NE(kernel, nullptr);
    EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan(0)));
    EXPECT_EQ(compiler_->compiles, 1);
    EXPECT_THAT(plans_failed(*kernel), IsEmpty());
  }
  compiler_->fails_at = symbol(other_plan(0));
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan(1)));
  EXPECT_THAT(plans_failed(*kernel), ElementsAre(to_string(other_plan(0))));
  EXPECT_THAT(kernel->failed_plans()[0].reason, HasSubstr("wrong-code"));
}

// A kernel that begins with another shape's code falls back to plans for its own: the other one's
// may want a workspace that nobody promised here.
TEST_F(DispatcherTest, AStandInFallsBackWithinItsOwnWorkspace) {
  spec_ = std::make_shared<const AttentionSpec>(
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: dilated(4)\n", "").value());
  const auto on_hopper =
      std::make_shared<Workshop>(std::make_unique<FakeDevice>("fake", Target::kSm90a),
                                 Overlay::open({.user_file = cache_file()}), opener(compiler_));
  Dispatcher dispatcher(on_hopper, true);
  for (const ProblemShape& shape :
       {ProblemShape{.batch = 1, .heads = 8, .kv_heads = 8, .q_len = 1024, .kv_len = 1024},
        ProblemShape{.batch = 1, .heads = 32, .kv_heads = 32, .q_len = 131072, .kv_len = 131072}}) {
    const Handle kernel = get(dispatcher, shape, Pass::kBackward);
    ASSERT_NE(kernel, nullptr);
    ASSERT_EQ(kernel->version().choice.plan.residues, 4);
    ASSERT_THAT(kernel->version().fallbacks, Not(IsEmpty()));
    for (const auto& code : kernel->version().fallbacks) {
      const auto needed = workspace_bytes(*spec_, launch_recipe(*spec_, code->plan()), shape);
      EXPECT_LE(needed, kernel->workspace_bytes(shape)) << to_string(code->plan());
    }
  }
}

}  // namespace
}  // namespace attune::runtime_test
