#include "tuner/search/race.hpp"

#include <gmock/gmock.h>

#include "tests/unit/tuner/fake_executor.hpp"

namespace attune {
namespace {

using namespace tuner_testing;

struct Outcome {
  std::map<KernelPlan, std::size_t> samples;  // of those that finished
  std::vector<std::string> failed;
  std::vector<KernelPlan> leaders;
  bool ok = true;
};

Outcome run(FakeExecutor& executor, const std::vector<KernelPlan>& plans, int rounds_allowed = 1000,
            bool to_the_end = false) {
  std::vector<Contestant> field;
  for (const KernelPlan& plan : plans) {
    const auto facts = executor.compile(plan);
    EXPECT_TRUE(executor.verify(plan).ok());
    field.push_back({.candidate = plan, .facts = *facts});
  }
  Outcome outcome;
  const RaceOptions options{
      .to_the_end = to_the_end,
      .finished =
          [&](const Contestant& c) { outcome.samples[c.candidate.plan] = c.samples_us.size(); },
      .failed = [&](const Contestant&, const Error& e) { outcome.failed.push_back(e.id); },
      .leads = [&](const Contestant& c) { outcome.leaders.push_back(c.candidate.plan); },
      .go_on = [&] { return --rounds_allowed > 0; }};
  outcome.ok = race(field, executor, options).ok();
  return outcome;
}

const std::vector<KernelPlan> kPlans{sm80_plan(64, 64, 2, 4), sm80_plan(128, 64, 2, 4),
                                     sm80_plan(128, 32, 2, 4), sm80_plan(128, 64, 3, 4)};

TEST(Race, EverybodyFinishesTheFasterTheLonger) {
  const std::map<KernelPlan, double> times{
      {kPlans[0], 100}, {kPlans[1], 104}, {kPlans[2], 120}, {kPlans[3], 200}};
  FakeExecutor executor(
      [&](const KernelPlan& plan) { return Behaviour{.time_us = times.at(plan)}; });
  const Outcome outcome = run(executor, kPlans);
  EXPECT_EQ(outcome.samples.at(kPlans[0]), 30u);
  EXPECT_EQ(outcome.samples.at(kPlans[1]), 5u) << "clearly slower after the second cut";
  EXPECT_EQ(outcome.samples.at(kPlans[3]), 2u) << "hopeless after the first";
}

TEST(Race, ToTheEndNobodyLeaves) {
  const std::map<KernelPlan, double> times{
      {kPlans[0], 100}, {kPlans[1], 104}, {kPlans[2], 120}, {kPlans[3], 200}};
  FakeExecutor executor(
      [&](const KernelPlan& plan) { return Behaviour{.time_us = times.at(plan)}; });
  const Outcome outcome = run(executor, kPlans, 1000, true);
  for (const KernelPlan& plan : kPlans) EXPECT_EQ(outcome.samples.at(plan), 30u);
}

TEST(Race, SaysWhoLeadsWhenThatChanges) {
  const std::map<KernelPlan, double> times{
      {kPlans[0], 100}, {kPlans[1], 104}, {kPlans[2], 120}, {kPlans[3], 200}};
  FakeExecutor executor(
      [&](const KernelPlan& plan) { return Behaviour{.time_us = times.at(plan)}; });
  EXPECT_EQ(run(executor, kPlans).leaders, std::vector{kPlans[0]});
}

TEST(Race, NoiseKeepsTheEqualIn) {
  FakeExecutor executor(
      [](const KernelPlan&) { return Behaviour{.time_us = 100, .noise = 0.004}; });
  const Outcome outcome = run(executor, kPlans);
  for (const KernelPlan& plan : kPlans) EXPECT_EQ(outcome.samples.at(plan), 30u);
}

TEST(Race, RoundsAreInterleavedAndStartInTurn) {
  FakeExecutor executor([](const KernelPlan&) { return Behaviour{}; });
  run(executor, kPlans);
  for (std::size_t round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < kPlans.size(); ++i) {
      EXPECT_EQ(executor.order[round * kPlans.size() + i], kPlans[(i + round) % kPlans.size()]);
    }
  }
}

TEST(Race, FailureCostsOnlyTheCandidate) {
  FakeExecutor executor([](const KernelPlan& plan) {
    return plan == kPlans[1] ? Behaviour{.fails_at = "time", .reason = "hang"} : Behaviour{};
  });
  const Outcome outcome = run(executor, kPlans);
  EXPECT_TRUE(outcome.ok);
  EXPECT_THAT(outcome.failed, ::testing::ElementsAre("candidate-hang"));
  EXPECT_EQ(outcome.samples.size(), 3u);
}

// The GPU has grown warm since the incumbent was new: what newcomers take is told as of then.
TEST(Race, NewcomersAreTimedAsIfTheGpuWereAsItWas) {
  const std::map<KernelPlan, double> times{{kPlans[0], 106}, {kPlans[1], 106 * 1.02}};
  FakeExecutor executor(
      [&](const KernelPlan& plan) { return Behaviour{.time_us = times.at(plan)}; });
  std::vector<Contestant> field;
  for (const KernelPlan& plan : {kPlans[0], kPlans[1]}) {
    const auto facts = executor.compile(plan);
    EXPECT_TRUE(executor.verify(plan).ok());
    field.push_back({.candidate = plan, .facts = *facts});
  }
  field[0].is_new = false;
  field[0].known_us = 100;
  std::map<KernelPlan, double> medians;
  const RaceOptions options{
      .finished =
          [&](const Contestant& c) { medians[c.candidate.plan] = spread_of(c.samples_us).median; },
      .failed = [](const Contestant&, const Error&) {},
      .leads =
          [&](const Contestant& c) {
            EXPECT_EQ(c.candidate.plan, kPlans[0]);
            EXPECT_DOUBLE_EQ(spread_of(c.samples_us).median, 100);
          },
      .go_on = [] { return true; }};
  ASSERT_TRUE(race(field, executor, options).ok());
  ASSERT_EQ(medians.size(), 1u);
  EXPECT_NEAR(medians.at(kPlans[1]), 102, 1e-9);
}

// Who left before it failed and who stays behind are told as of the same GPU.
TEST(Race, NewcomersAreTimedAlikeWhenTheIncumbentFails) {
  const std::map<KernelPlan, double> times{
      {kPlans[0], 106}, {kPlans[1], 106 * 1.02}, {kPlans[3], 106 * 2}};
  int rounds = 0;
  FakeExecutor executor([&](const KernelPlan& plan) {
    Behaviour behaviour{.time_us = times.at(plan)};
    if (plan == kPlans[0] && rounds == 3) {
      behaviour.fails_at = "time";
      behaviour.reason = "hang";
    }
    return behaviour;
  });
  std::vector<Contestant> field;
  for (const KernelPlan& plan : {kPlans[0], kPlans[1], kPlans[3]}) {
    const auto facts = executor.compile(plan);
    EXPECT_TRUE(executor.verify(plan).ok());
    field.push_back({.candidate = plan, .facts = *facts});
  }
  field[0].is_new = false;
  field[0].known_us = 100;
  std::map<KernelPlan, Contestant> finished;
  int failed = 0;
  const RaceOptions options{
      .finished = [&](const Contestant& c) { finished.emplace(c.candidate.plan, c); },
      .failed = [&](const Contestant&, const Error&) { ++failed; },
      .go_on =
          [&] {
            ++rounds;
            return true;
          }};
  ASSERT_TRUE(race(field, executor, options).ok());
  EXPECT_EQ(failed, 1);
  ASSERT_EQ(finished.size(), 2u);
  const auto& early = finished.at(kPlans[3]).samples_us;
  const auto& late = finished.at(kPlans[1]).samples_us;
  EXPECT_EQ(early.size(), 2u);
  EXPECT_EQ(late.size(), 30u);
  EXPECT_NEAR(spread_of(early).median, 200, 1e-9);
  EXPECT_NEAR(spread_of(late).median, 102, 1e-9);
}

TEST(Race, MachinesFailureEndsIt) {
  FakeExecutor executor([](const KernelPlan&) { return Behaviour{}; });
  executor.machine_fails_after = 6;
  EXPECT_FALSE(run(executor, kPlans).ok);
}

TEST(Race, StopsBetweenRounds) {
  FakeExecutor executor([](const KernelPlan&) { return Behaviour{}; });
  run(executor, kPlans, 3);
  EXPECT_EQ(executor.order.size(), 3 * kPlans.size());
}

TEST(Race, SlowKernelsGetFewerSamples) {
  EXPECT_EQ(full_sample_count(50), 30);
  EXPECT_EQ(full_sample_count(100e3), 10);
  EXPECT_EQ(full_sample_count(5e6), 5);
}

}  // namespace
}  // namespace attune
