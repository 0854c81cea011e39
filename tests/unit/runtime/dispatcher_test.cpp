// Which code answers a spec and a shape, and when other code takes its place.
#include "runtime/engine/dispatcher.hpp"

#include <gmock/gmock.h>

#include <latch>
#include <map>
#include <set>

#include "runtime/device/workspace.hpp"
#include "tests/unit/cache/allocations.hpp"
#include "tests/unit/runtime/dispatcher_fixture.hpp"

namespace attune::runtime_test {
namespace {

using testing::IsEmpty;

TEST_F(DispatcherTest, AKnownKernelIsTheSameAndCostsNoAllocation) {
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle first = get(dispatcher);
  EXPECT_EQ(first->version().choice.source, PlanSource::kCostModel);
  const SpecId id = SpecId::from_hash(spec_hash(*spec_));
  att::LaunchParams params{};
  LaunchRecord record{std::string(200, ' '), std::string(200, ' ')};
  params.o = &record;
  const long before = cache_testing::allocations_of_this_thread();
  const auto again = dispatcher.get(spec_, id, kShape);
  const Status launch = first->launch(params, nullptr, nullptr);
  const long after = cache_testing::allocations_of_this_thread();
  EXPECT_EQ(after, before);
  EXPECT_TRUE(launch.ok());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, first.get());
  (*again)->release();
  EXPECT_EQ(first->hits(), 1u);
  EXPECT_EQ(dispatcher.counters().misses, 1u);
  EXPECT_EQ(compiler_->compiles, 1);
}

TEST_F(DispatcherTest, ARefreshReplacesKernelsThatAreHeld) {
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle held = get(dispatcher);
  const KernelVersion& old = held->version();
  record_winner(other_plan());
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(held->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(held->version().choice.file, cache_file());
  EXPECT_EQ(held->version().choice.measured_shape, kShape);
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan()));
  EXPECT_EQ(get(dispatcher).get(), held.get());
  // What a captured graph still uses.
  EXPECT_EQ(old.plan, to_string(model_plan()));
  LaunchRecord record;
  att::LaunchParams params{};
  params.o = &record;
  EXPECT_TRUE(old.code.kernel->launch(params, nullptr, nullptr).ok());
  EXPECT_EQ(record.symbol, symbol(model_plan()));
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(dispatcher.counters().replacements, 1u);
}

// Their kernels differ by where a seed is read.
TEST_F(DispatcherTest, ASeedOnTheDeviceHasTheWinnersOfOneOfTheLaunch) {
  auto of_launch = std::make_shared<AttentionSpec>(*spec_);
  of_launch->dropout.value = 0.25;
  auto of_device = std::make_shared<AttentionSpec>(*of_launch);
  of_device->seed_on_device = true;
  spec_ = of_launch;
  record_winner(other_plan());
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const SpecId id = SpecId::from_hash(spec_hash(*of_device));
  const Handle kernel(dispatcher.get(of_device, id, kShape).value());
  EXPECT_EQ(kernel->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(kernel->version().choice.plan, other_plan());
  spec_ = of_device;
  record_winner(other_plan(1));
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(kernel->version().choice.plan, other_plan(1));
}

TEST_F(DispatcherTest, EachPassHasKernelsAndWinnersOfItsOwn) {
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  record_winner(other_plan());
  const Handle forward = get(dispatcher);
  const Handle backward = get(dispatcher, kShape, Pass::kBackward);
  EXPECT_EQ(forward->version().choice.plan, other_plan());
  EXPECT_EQ(backward->version().choice.plan.pass, Pass::kBackward);
  EXPECT_EQ(backward->version().choice.source, PlanSource::kCostModel);
  const KernelPlan slower = backward->version().choice.plan;
  const auto plans =
      plans_by_cost(*spec_, kShape, dispatcher.workshop().device().facts(), Pass::kBackward);
  ASSERT_TRUE(plans.ok());
  ASSERT_NE((*plans)[1], slower);
  record_winner((*plans)[1]);
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(backward->version().choice.plan, (*plans)[1]);
  EXPECT_EQ(backward->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(forward->version().choice.plan, other_plan());
  EXPECT_EQ(get(dispatcher).get(), forward.get());
  EXPECT_EQ(get(dispatcher, kShape, Pass::kBackward).get(), backward.get());
}

// The forward pass' compile ends when the backward one's has begun, which nobody has asked for.
TEST_F(DispatcherTest, OfATrainingSpecBothPassesAreCompiledAtOnce) {
  auto training = std::make_shared<AttentionSpec>(*spec_);
  training->passes = {Pass::kForward, Pass::kBackward};
  const SpecId id = SpecId::from_hash(spec_hash(*training));
  std::latch both(2);
  compiler_->on_compile = [&] { both.arrive_and_wait(); };
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle forward(dispatcher.get(training, id, kShape).value());
  const Handle backward(dispatcher.get(training, id, kShape, Pass::kBackward).value());
  EXPECT_EQ(compiler_->compiles, 2);
  EXPECT_EQ(forward->version().choice.plan.pass, Pass::kForward);
  EXPECT_EQ(backward->version().choice.plan.pass, Pass::kBackward);
}

TEST_F(DispatcherTest, OfAForwardSpecNothingElseIsCompiled) {
  {
    Dispatcher dispatcher(workshop(opener(compiler_)), false);
    get(dispatcher);
  }
  EXPECT_EQ(compiler_->compiles, 1);
}

TEST_F(DispatcherTest, ABackwardKernelThatCannotBeBuiltAheadFailsWhereItIsAskedFor) {
  auto training = std::make_shared<AttentionSpec>(*spec_);
  training->passes = {Pass::kForward, Pass::kBackward};
  const SpecId id = SpecId::from_hash(spec_hash(*training));
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const auto plans =
      plans_by_cost(*training, kShape, dispatcher.workshop().device().facts(), Pass::kBackward);
  compiler_->fails_at = symbol(plans.value().front());
  const Handle forward(dispatcher.get(training, id, kShape).value());
  const Handle backward(dispatcher.get(training, id, kShape, Pass::kBackward).value());
  EXPECT_THAT(plans_failed(*backward), testing::Not(IsEmpty()));
  EXPECT_THAT(plans_failed(*forward), IsEmpty());
}

TEST_F(DispatcherTest, DataThatAHostTellsOfChoosesAmongKindsThatWereMeasured) {
  const MaskData many{.label = "t0=many", .live = 0.1, .full = 0.05};
  const MaskData few{.label = "t0=few", .live = 0.8, .full = 0.6};
  const auto record = [&](int plan, double on_many, double on_few) {
    record_winner(other_plan(plan), kShape, on_many, "fake", "", many);
    record_winner(other_plan(plan), kShape, on_few, "fake", "", few);
  };
  record(0, 10, 30);
  record(1, 30, 10);
  record(2, 14, 14);
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle held = get(dispatcher);
  EXPECT_EQ(held->version().choice.plan, other_plan(2)) << "loses 1.4 at most, not 3";
  ASSERT_TRUE(dispatcher.tell_data(*held, {.live = 0.12, .full = 0.05}).ok());
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan(0)));
  ASSERT_TRUE(dispatcher.tell_data(*held, {.live = 0.9, .full = 0.5}).ok());
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan(1)));
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan(1))) << "what was told stays";
}

TEST_F(DispatcherTest, LengthsThatAHostTellsOfChooseAmongClassesThatWereMeasured) {
  const LengthClass alike{.longest = 1, .filled = 1}, skewed{.longest = 8, .filled = 1};
  const auto record = [&](int plan, double on_alike, double on_skewed) {
    record_winner(other_plan(plan), kShape, on_alike, "fake", "",
                  {.label = "lengths=equal", .lengths = alike});
    record_winner(other_plan(plan), kShape, on_skewed, "fake", "",
                  {.label = "lengths=skewed(longest=0.5)", .lengths = skewed});
  };
  record(0, 10, 30);
  record(1, 30, 10);
  record(2, 14, 14);
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle held = get(dispatcher);
  EXPECT_EQ(held->version().choice.plan, other_plan(2)) << "nothing is told";
  ASSERT_TRUE(dispatcher.tell_lengths(*held, {.longest = 4, .filled = 1}).ok());
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan(1)));
  ASSERT_TRUE(dispatcher.tell_tiles(*held, {.live = 0.5, .full = 0.5}).ok());
  EXPECT_EQ(held->data().lengths.longest, 4) << "what was told of lengths stays";
  ASSERT_TRUE(dispatcher.tell_lengths(*held, alike).ok());
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan(0)));
  EXPECT_EQ(held->data().live, 0.5);
  ASSERT_TRUE(dispatcher.tell_tiles(*held, {.label = "t0=few", .live = 0.5, .full = 0.5}).ok());
  EXPECT_EQ(held->data().label, "") << "of tensors alone, it would stand for any lengths";
}

TEST_F(DispatcherTest, ClassesThatComeAndGoHaveAVersionEach) {
  const LengthClass alike{.longest = 1, .filled = 1}, skewed{.longest = 8, .filled = 1};
  record_winner(other_plan(0), kShape, 10, "fake", "",
                {.label = "lengths=equal", .lengths = alike});
  record_winner(other_plan(1), kShape, 10, "fake", "",
                {.label = "lengths=skewed(longest=0.5)", .lengths = skewed});
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle held = get(dispatcher);
  std::map<bool, std::set<const KernelVersion*>> versions;
  for (int step = 0; step < 20; ++step) {
    const bool even = step % 2 == 0;
    ASSERT_TRUE(dispatcher.tell_lengths(*held, even ? alike : skewed).ok());
    EXPECT_EQ(held->version().choice.plan, other_plan(even ? 0 : 1));
    versions[even].insert(&held->version());
  }
  EXPECT_EQ(versions[false].size(), 1);
  EXPECT_EQ(versions[true].size(), 1);
}

TEST_F(DispatcherTest, APlanComesFromTheNearestInSharesAsWellAsInShape) {
  constexpr ProblemShape kTwice{.batch = kShape.batch,
                                .heads = kShape.heads,
                                .kv_heads = kShape.kv_heads,
                                .q_len = 2 * kShape.q_len,
                                .kv_len = 2 * kShape.kv_len};
  record_winner(other_plan(0), kShape, 10, "fake", "",
                {.label = "t0=few", .live = 0.9, .full = 0.8});
  record_winner(other_plan(1), kTwice, 20, "fake", "",
                {.label = "t0=many", .live = 0.1, .full = 0});
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const Handle held = get(dispatcher);
  EXPECT_EQ(held->version().choice.plan, other_plan(0)) << "the shape decides, as nothing is told";
  ASSERT_TRUE(dispatcher.tell_data(*held, {.live = 0.12, .full = 0}).ok());
  EXPECT_EQ(held->version().choice.plan, other_plan(1));
  EXPECT_EQ(held->version().choice.source, PlanSource::kNearestBucket);
  EXPECT_EQ(held->version().choice.measured_shape, kTwice);
  ASSERT_TRUE(dispatcher.tell_data(*held, {.live = 0.5, .full = 0.4}).ok());
  EXPECT_EQ(held->version().choice.plan, other_plan(0));
  EXPECT_EQ(held->version().choice.source, PlanSource::kMeasured);
}

TEST_F(DispatcherTest, AMissSeesWhatWasTunedSince) {
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  const ProblemShape longer{.batch = 1, .heads = 8, .kv_heads = 8, .q_len = 4096, .kv_len = 4096};
  const Handle first = get(dispatcher);
  record_winner(other_plan(), longer);
  const Handle second = get(dispatcher, longer);
  EXPECT_EQ(second->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(second->version().choice.plan, other_plan());
  EXPECT_EQ(first->version().choice.source, PlanSource::kCostModel);  // nobody asked for it
  ASSERT_TRUE(dispatcher.refresh().ok());
  EXPECT_EQ(first->version().choice.source, PlanSource::kNearestBucket);
  EXPECT_EQ(first->version().choice.measured_shape, longer);
}

TEST_F(DispatcherTest, InTheBackgroundTheBetterPlanReplacesTheStandIn) {
  compile_into_cache(other_plan());
  const auto gate = hold_compiles();
  Dispatcher dispatcher(workshop(opener(compiler_)), true);
  const Handle held = get(dispatcher);  // would wait for ever if it compiled
  EXPECT_EQ(held->version().choice.source, PlanSource::kStandIn);
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan()));
  gate->set_value();
  dispatcher.wait_idle();
  EXPECT_EQ(held->version().choice.source, PlanSource::kCostModel);
  EXPECT_EQ(launched(*held).symbol, symbol(model_plan()));
  EXPECT_EQ(compiler_->compiles, 1);
  EXPECT_EQ(dispatcher.counters().stand_ins, 1u);
  EXPECT_EQ(dispatcher.counters().replacements, 1u);
}

TEST_F(DispatcherTest, InTheBackgroundATunedPlanReplacesTheCostModels) {
  Dispatcher dispatcher(workshop(opener(compiler_)), true);
  const Handle held = get(dispatcher);
  EXPECT_EQ(held->version().choice.source, PlanSource::kCostModel);
  record_winner(other_plan());
  const auto gate = hold_compiles();
  ASSERT_TRUE(dispatcher.refresh().ok());  // returns although compiles are held
  EXPECT_EQ(launched(*held).symbol, symbol(model_plan()));
  gate->set_value();
  dispatcher.wait_idle();
  EXPECT_EQ(held->version().choice.source, PlanSource::kMeasured);
  EXPECT_EQ(launched(*held).symbol, symbol(other_plan()));
}

TEST_F(DispatcherTest, InTheBackgroundTheFirstKernelOfASpecIsCompiledByItsCaller) {
  Dispatcher dispatcher(workshop(opener(compiler_)), true);
  EXPECT_EQ(get(dispatcher)->version().choice.source, PlanSource::kCostModel);
  EXPECT_EQ(compiler_->compiles, 1);
  EXPECT_EQ(dispatcher.counters().stand_ins, 0u);
}

TEST_F(DispatcherTest, AFailureInTheBackgroundIsCountedAndNotRepeatedByItself) {
  compile_into_cache(other_plan());
  compiler_->broken = true;
  Dispatcher dispatcher(workshop(opener(compiler_)), true);
  const Handle held = get(dispatcher);
  dispatcher.wait_idle();
  ASSERT_TRUE(dispatcher.refresh().ok());
  dispatcher.wait_idle();
  EXPECT_EQ(held->version().choice.source, PlanSource::kStandIn);
  EXPECT_EQ(dispatcher.counters().failed_replacements, 1u);
  EXPECT_EQ(compiler_->compiles, 1);
}

TEST_F(DispatcherTest, DestructionWaitsForTheCompileUnderWayAndDropsTheRest) {
  compile_into_cache(other_plan());
  std::promise<void> started;
  const auto gate = std::make_shared<std::promise<void>>();
  compiler_->on_compile = [&, opened = gate->get_future().share()] {
    started.set_value();  // throws at a second compile
    opened.wait();
  };
  std::vector<Handle> held;
  std::jthread opens_the_gate;
  {
    Dispatcher dispatcher(workshop(opener(compiler_)), true);
    held.push_back(get(dispatcher));
    started.get_future().wait();
    held.push_back(get(dispatcher, {.batch = 3, .q_len = 64, .kv_len = 64}));
    opens_the_gate = std::jthread([&] { gate->set_value(); });
  }
  EXPECT_EQ(compiler_->compiles, 1);
  for (const Handle& kernel : held) EXPECT_NE(launched(*kernel).symbol, "");
}

TEST_F(DispatcherTest, WithoutCompilerOtherCodeOfTheSpecServes) {
  compile_into_cache(other_plan());
  Dispatcher dispatcher(workshop(no_compiler()), false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->version().choice.source, PlanSource::kStandIn);
  EXPECT_EQ(launched(*kernel).symbol, symbol(other_plan()));
}

TEST_F(DispatcherTest, WithoutCompilerAndCodeTheErrorNamesTheCompiler) {
  Dispatcher dispatcher(workshop(no_compiler()), true);
  const auto entry = dispatcher.get(spec_, SpecId::from_hash(spec_hash(*spec_)), kShape);
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.error().kind, ErrorKind::kUnavailable);
  EXPECT_EQ(entry.error().id, "nvrtc-missing");
}

TEST_F(DispatcherTest, LaunchesFromManyThreadsWhileCodeIsReplaced) {
  Dispatcher dispatcher(workshop(opener(compiler_)), true);
  const Handle held = get(dispatcher);
  constexpr int kThreads = 4;
  const auto shape_of = [](int thread) {
    return ProblemShape{.batch = 1 + thread, .q_len = 128, .kv_len = 128};
  };
  std::set<std::string> known = {symbol(model_plan()), symbol(other_plan(0)), symbol(other_plan(1)),
                                 symbol(other_plan(2))};
  // A thread that is first asks before there is a winner.
  for (int i = 0; i < kThreads; ++i) known.insert(symbol(model_plan(shape_of(i))));
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, shape = shape_of(i)] {
        while (!stop) {
          if (!known.contains(launched(*held).symbol)) ++wrong;
          if (!known.contains(launched(*get(dispatcher, shape)).symbol)) ++wrong;
        }
      });
    }
    // Each winner is faster than the one before.
    for (int i = 0; i < 3; ++i) {
      record_winner(other_plan(i), kShape, 10 - 3 * i);
      ASSERT_TRUE(dispatcher.refresh().ok());
      dispatcher.wait_idle();
      EXPECT_EQ(launched(*held).symbol, symbol(other_plan(i)));
    }
    stop = true;
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(DispatcherTest, DevicesSideBySideKeepTheirOwnKernelsAndWinners) {
  record_winner(other_plan(0), kShape, 10, "left");
  record_winner(other_plan(1), kShape, 10, "right");
  Dispatcher left(workshop(opener(compiler_), "left"), false);
  Dispatcher right(workshop(opener(compiler_), "right"), true);
  (void)get(left);
  (void)get(right);   // the code of left's winner, which the cache file has by now,
  right.wait_idle();  // until its own is compiled
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, on_left = i % 2 == 0] {
        for (int launch = 0; launch < 200; ++launch) {
          const LaunchRecord record = launched(*get(on_left ? left : right));
          if (record.device != (on_left ? "left" : "right")) ++wrong;
          if (record.symbol != symbol(other_plan(on_left ? 0 : 1))) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(DispatcherTest, AWorkspaceIsLargeEnoughForEveryPlanThatMayCome) {
  const DeviceFacts hopper = device_facts(Target::kSm90a);
  const auto made = std::make_shared<Workshop>(
      std::make_unique<FakeDevice>("hopper", Target::kSm90a), Overlay::open({}), opener(compiler_));
  Dispatcher dispatcher(made, false);
  const Handle kernel = get(dispatcher);
  ASSERT_NE(kernel, nullptr);
  for (const Family family : {Family::kSm80, Family::kSm90a, Family::kDecode}) {
    for (const KernelPlan& plan : legal_plans(*spec_, family, hopper)) {
      EXPECT_GE(kernel->workspace_bytes(kShape),
                workspace_bytes(*spec_, launch_recipe(*spec_, plan), kShape))
          << to_string(plan);
    }
  }
}

}  // namespace
}  // namespace attune::runtime_test
