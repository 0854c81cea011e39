// From plan to code: what is compiled, what comes from the cache, and what a broken cache costs.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "cache/keys.hpp"
#include "tests/unit/cache/processes.hpp"
#include "tests/unit/runtime/fakes.hpp"

namespace attune::runtime_test {
namespace {

class Build : public EngineTest {
 protected:
  std::unique_ptr<Store> store(const StoreOptions& options = {}) {
    auto opened = open_store(cache_file(), options);
    EXPECT_TRUE(opened.ok()) << render(opened.error());
    return std::move(opened).value();
  }
  BuiltKernel built(Store* store) {
    auto kernel = build(*spec_, plan_, code_maker_, store);
    EXPECT_TRUE(kernel.ok()) << render(kernel.error());
    return std::move(kernel).value();
  }

  KernelPlan plan_ = model_plan();
  FakeCompiler code_maker_{compiler_};
};

TEST_F(Build, CompilesEachTimeWithoutACache) {
  EXPECT_FALSE(built(nullptr).from_cache);
  EXPECT_FALSE(built(nullptr).from_cache);
  EXPECT_EQ(compiler_->compiles, 2);
}

TEST_F(Build, TheSecondBuildIsTakenFromTheCache) {
  const auto cache = store();
  const BuiltKernel first = built(cache.get());
  const BuiltKernel second = built(cache.get());
  EXPECT_EQ(compiler_->compiles, 1);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.code.image, first.code.image);
  EXPECT_EQ(second.code.registers, 99);
  EXPECT_EQ(second.symbol, first.symbol);
}

// Cold, at the same moment, on a file that is not there yet: most find the lease given back already
// when they come to ask for it.
TEST_F(Build, OfManyProcessesOneCompiles) {
  constexpr int kProcesses = 64;
  int compiled[2];
  ASSERT_EQ(pipe(compiled), 0);
  EXPECT_TRUE(cache_testing::in_processes(kProcesses, [&](int) {
    const BuiltKernel kernel = built(store({.busy_timeout_ms = 60'000}).get());
    return kernel.code.registers == 99 && (kernel.from_cache || write(compiled[1], "c", 1) == 1);
  }));
  close(compiled[1]);
  std::array<char, kProcesses> compiles;
  EXPECT_EQ(read(compiled[0], compiles.data(), compiles.size()), 1);
  close(compiled[0]);
}

// On another host, so that nobody here can know that it will never get on.
TEST_F(Build, AProcessThatDoesNotGetOnIsWaitedForOnlySoLong) {
  const auto cache = store();
  const BuildKey key = build_key(*spec_, plan_, code_maker_).value();
  {
    SQLite::Database database(cache_file(), SQLite::OPEN_READWRITE);
    SQLite::Statement lease(database, "INSERT INTO lease VALUES (?1, 'elsewhere:1', ?2, ?3)");
    lease.bind(1, "build:" + key.digest());
    lease.bind(2, cache::unix_milliseconds());
    lease.bind(3, cache::unix_milliseconds() + 3'600'000);
    lease.exec();
  }
  const auto kernel = build(*spec_, plan_, code_maker_, cache.get(), 0.05);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  EXPECT_FALSE(kernel->from_cache);
  EXPECT_TRUE(built(cache.get()).from_cache) << "what it made itself";
}

TEST_F(Build, AnotherCompilerVersionOrPlanIsOtherCode) {
  const auto cache = store();
  built(cache.get());
  compiler_->version = "fake 2";
  EXPECT_FALSE(built(cache.get()).from_cache);
  plan_ = other_plan(0);
  EXPECT_FALSE(built(cache.get()).from_cache);
  EXPECT_EQ(compiler_->compiles, 3);
}

TEST_F(Build, ACacheThatCannotBeWrittenCostsACompile) {
  store();  // made, closed
  int warnings = 0;
  const auto cache = store({.read_only = true, .warn = [&](const Error&) { ++warnings; }});
  EXPECT_FALSE(built(cache.get()).from_cache);
  EXPECT_FALSE(built(cache.get()).from_cache);
  EXPECT_EQ(compiler_->compiles, 2);
}

TEST_F(Build, AFailureIsTheCompilersAndIsNotStored) {
  const auto cache = store();
  compiler_->broken = true;
  const auto failed = build(*spec_, plan_, code_maker_, cache.get());
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().id, "compile-failed");
  compiler_->broken = false;
  EXPECT_FALSE(built(cache.get()).from_cache);
}

TEST_F(Build, ThePlanComesFromTheCacheWhenItIsLegalThere) {
  const FakeDevice device;
  const auto cache = store();
  // One family serves dropout.
  AttentionSpec spec = *spec_;
  spec.dropout.value = 0.25;
  const ProblemShape shape = {.q_len = 512, .kv_len = 512};
  const auto plans = legal_plans(spec, Family::kSm80, device.facts());
  ASSERT_GT(plans.size(), 2u);
  const ProblemShape longer = {.q_len = 16384, .kv_len = 16384};
  const auto growth = [&](const KernelPlan& plan) {
    return cost_us(spec, plan, longer, device.facts()) / cost_us(spec, plan, shape, device.facts());
  };
  const KernelPlan tuned = *std::ranges::max_element(plans, {}, growth);
  const auto choose = [&](const ProblemShape& asked) {
    auto choice = choose_plan(spec, asked, device, cache.get());
    EXPECT_TRUE(choice.ok()) << render(choice.error());
    return std::move(choice).value();
  };
  EXPECT_EQ(choose(shape).source, PlanSource::kCostModel);
  const MeasurementKey key{.spec_hash = spec_hash(spec),
                           .device = device.identity(),
                           .shape = shape,
                           .protocol = std::string(kMeasurementProtocol)};
  const auto record = [&](const std::string& plan, const std::string& digest, double us) {
    ASSERT_TRUE(cache
                    ->record(key, {.plan = plan,
                                   .build_digest = digest,
                                   .median_us = us,
                                   .spread_us = 0.1,
                                   .samples = 10})
                    .ok());
  };
  record(to_string(tuned), "a", 50);
  EXPECT_EQ(choose(shape).source, PlanSource::kMeasured);
  EXPECT_EQ(choose(shape).plan, tuned);
  EXPECT_EQ(choose(shape).file, cache->path());
  EXPECT_EQ(choose({.q_len = 640, .kv_len = 512}).source, PlanSource::kNearestBucket);
  // A bucket whose plans all suit the shape badly leaves it to the model's guess, when there are
  // enough to tell.
  const KernelPlan guess = default_plan(spec, longer, device.facts()).value();
  EXPECT_EQ(choose(longer).plan, tuned);
  auto worst = plans;
  std::ranges::sort(worst, std::greater(), growth);
  ASSERT_GT(growth(worst[3]), 1.2 * growth(guess));
  for (std::size_t i = 1; i < 4; ++i) record(to_string(worst[i]), "worst " + std::to_string(i), 52);
  EXPECT_EQ(choose(longer).plan, guess);
  EXPECT_EQ(choose(longer).source, PlanSource::kCostModel);
  EXPECT_EQ(choose(shape).plan, tuned);
  // Of plans that are level there, another shape gets the one that the model says gains by it.
  record(to_string(guess), "c", 51);
  EXPECT_EQ(choose(longer).plan, guess);
  EXPECT_EQ(choose(longer).source, PlanSource::kNearestBucket);
  EXPECT_EQ(choose(shape).plan, tuned);
  // What a later version of Attune wrote is passed over for the next best.
  record("sm80 forward sm_80 q9999 warp-drive", "b", 1);
  EXPECT_EQ(choose(shape).source, PlanSource::kMeasured);
  EXPECT_EQ(choose(shape).plan, tuned);
}

}  // namespace
// The model's word about another shape is not good to a percent.
TEST_F(Build, AnotherShapeKeepsTheBucketsWinnerUnlessMuchIsToBeGained) {
  const FakeDevice device;
  const ProblemShape shape = {.q_len = 512, .kv_len = 512};
  const ProblemShape longer = {.q_len = 1024, .kv_len = 1024};
  const auto plans = legal_plans(*spec_, Family::kSm80, device.facts());
  const auto growth = [&](const KernelPlan& plan) {
    return cost_us(*spec_, plan, longer, device.facts()) /
           cost_us(*spec_, plan, shape, device.facts());
  };
  // Another one is expected to gain so much on the first.
  const auto chosen_of_two_with_gain = [&](double least, double most) -> std::optional<bool> {
    for (const KernelPlan& first : plans) {
      for (const KernelPlan& second : plans) {
        const double gain = growth(first) / growth(second);
        if (gain < least || gain > most) continue;
        const Winner winner{.plan = to_string(first),
                            .median_us = 50,
                            .measured_shape = shape,
                            .runners_up = {{.plan = to_string(second), .median_us = 50}}};
        const auto choices =
            measured_choices(*spec_, Pass::kForward, longer, device.facts(), winner, "file");
        return choices.usable.front().plan == first;
      }
    }
    return std::nullopt;
  };
  EXPECT_EQ(chosen_of_two_with_gain(1.005, 1.015), true);
  EXPECT_EQ(chosen_of_two_with_gain(1.03, 1.2), false);
}

// Launches on small pages find the rows again; large ones have boxes.
TEST(MeasuredChoices, AWinnerOfSmallPagesServesLargeOnesByBoxes) {
  const AttentionSpec spec =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nlayout: paged\n", "").value();
  const std::string boxes = "sm90a forward sm_90a w2 k128 s2 b2 qreg c1 longest g16 frozen tma";
  const ProblemShape shape = {.q_len = 64, .kv_len = 4096};
  const Winner winner{.plan = boxes + " rows", .median_us = 50, .measured_shape = shape};
  const auto choices =
      measured_choices(spec, Pass::kForward, shape, device_facts(Target::kSm90a), winner, "file");
  ASSERT_EQ(choices.usable.size(), 1);
  EXPECT_EQ(to_string(choices.usable.front().plan), boxes);
  EXPECT_EQ(choices.usable.front().source, PlanSource::kMeasured);
}

}  // namespace attune::runtime_test
