// The tuner's whole path over an abstract Device and Compiler: host memory, a kernel in plain C++
// and a clock that only launches move.
#include "tuner/measure/local_executor.hpp"

#include <gmock/gmock.h>

#include <array>
#include <map>

#include "tests/unit/cache/fixtures.hpp"
#include "tests/unit/tuner/fake_device.hpp"
#include "tuner/search/seeds.hpp"
#include "tuner/tuner.hpp"

namespace attune {
namespace {

using namespace tuner_testing;

struct Bench {
  explicit Bench(PlantedBehaviour behaviour, Target target = Target::kCpu)
      : device(std::move(behaviour), target), store(std::move(*open_store(directory.file()))) {
    const std::string dtype = target == Target::kCpu ? "fp32" : "bf16";
    auto parsed = parse_spec("attune: 1\nname: plain\nhead_dim: 16\ndtype: " + dtype, "plain.yaml");
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : render(parsed.error()));
    spec = *parsed;
  }
  Result<TuneResult> run(TuneOptions options = {.max_candidates = 12}) {
    options.compile_threads = 1;
    return tune(spec, shape, device, std::array<Compiler*, 1>{&compiler}, *store, options,
                [](const TuneProgress&) { return true; });
  }
  std::vector<KernelPlan> plans(Pass pass = Pass::kForward) {
    return *plans_by_cost(spec, shape, device.facts(), pass);
  }
  MeasurementKey key(Pass pass = Pass::kForward) {
    return {spec_hash(spec), device.identity(), shape, std::string(kMeasurementProtocol), pass};
  }

  cache_testing::TemporaryDirectory directory;
  FakeDevice device;
  FakeCompiler compiler;
  std::unique_ptr<Store> store;
  AttentionSpec spec;
  ProblemShape shape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 9};
};

TEST(Tune, TimesWhatIsRightAndKeepsTheFastest) {
  KernelPlan fastest;
  Bench bench(
      [&](const KernelPlan& plan) { return Planted{.time_us = plan == fastest ? 50.0 : 100.0}; });
  fastest = search_seeds(bench.plans())[3];
  const auto result = bench.run();
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_EQ(result->plan, fastest);
  EXPECT_DOUBLE_EQ(result->median_us, 50);
  EXPECT_EQ(result->rejected, 0);
  EXPECT_EQ(bench.store->winner(bench.key()).value()->plan, to_string(fastest));
}

TEST(Tune, CulpritsNeverWin) {
  std::vector<KernelPlan> plans;
  Bench bench([&](const KernelPlan& plan) {
    Planted planted;
    for (std::size_t i = 0; i < 3; ++i) {
      if (plan != plans[i]) continue;
      planted.time_us = 1;  // the culprits would be the fastest
      planted.wrong = i == 0;
      planted.writes_behind = i == 1;
      planted.does_not_load = i == 2;
    }
    return planted;
  });
  plans = search_seeds(bench.plans());
  const auto result = bench.run();
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_EQ(result->rejected, 3);
  EXPECT_DOUBLE_EQ(result->median_us, 100);
  std::map<std::string, std::string> reasons;
  const std::vector<Rejection> rejections = bench.store->rejections(bench.key()).value();
  for (const Rejection& r : rejections) reasons[r.plan] = r.reason;
  EXPECT_EQ(reasons[to_string(plans[0])], "miscompute");
  EXPECT_EQ(reasons[to_string(plans[1])], "miscompute");
  EXPECT_EQ(reasons[to_string(plans[2])], "launch");
}

TEST(Tune, AFaultIsRememberedAndTheNextRunGoesOn) {
  KernelPlan culprit;
  const auto behaviour = [&](const KernelPlan& plan) { return Planted{.faults = plan == culprit}; };
  Bench bench(behaviour);
  culprit = bench.plans()[0];
  const auto first = bench.run();
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().id, "device-lost");
  ASSERT_THAT(bench.store->rejections(bench.key()).value(), ::testing::SizeIs(1));
  EXPECT_EQ(bench.store->rejections(bench.key()).value()[0].reason, "fault");
  bench.device.faulted = false;  // a new process, a new context
  const auto second = bench.run();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->rejected, 1);
  EXPECT_NE(second->plan, culprit);
}

Planted planted_in(const std::vector<KernelPlan>& plans, const KernelPlan& plan) {
  const auto at = std::ranges::find(plans, plan) - plans.begin();
  return {.time_us = at < 3    ? 1.0
                     : at == 4 ? 50.0
                               : 100.0,  // the culprits would be the fastest
          .writes_behind = at == 1,
          .wrong = at == 0,
          .does_not_load = at == 2};
}

TEST(Tune, ABackwardPassHasItsOwnPlansAndItsOwnWinner) {
  std::vector<KernelPlan> plans;
  Bench bench([&](const KernelPlan& plan) { return planted_in(plans, plan); }, Target::kSm80);
  plans = search_seeds(bench.plans(Pass::kBackward));
  const auto result = bench.run({.pass = Pass::kBackward});
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_EQ(result->plan, plans[4]);
  EXPECT_DOUBLE_EQ(result->median_us, 50);
  EXPECT_EQ(result->rejected, 3);
  std::map<std::string, std::string> reasons;
  const std::vector<Rejection> rejections =
      bench.store->rejections(bench.key(Pass::kBackward)).value();
  for (const Rejection& r : rejections) reasons[r.plan] = r.reason;
  EXPECT_EQ(reasons[to_string(plans[0])], "miscompute");
  EXPECT_EQ(reasons[to_string(plans[1])], "miscompute");
  EXPECT_EQ(reasons[to_string(plans[2])], "launch");
  EXPECT_FALSE(bench.store->winner(bench.key()).value()) << "the forward pass was not measured";
  const auto choose = [&](Pass pass) {
    return choose_plan(bench.spec, bench.shape, bench.device, bench.store.get(), pass).value();
  };
  EXPECT_EQ(choose(Pass::kBackward).plan, plans[4]);
  EXPECT_EQ(choose(Pass::kBackward).source, PlanSource::kMeasured);
  EXPECT_EQ(choose(Pass::kForward).source, PlanSource::kCostModel);
}

// Longer than the oracle works out in full.
TEST(LocalExecutor, FindsAWrongGradientAmongRowsOfALongProblem) {
  std::vector<KernelPlan> plans;
  Bench bench([&](const KernelPlan& plan) { return planted_in(plans, plan); }, Target::kSm80);
  plans = search_seeds(bench.plans(Pass::kBackward));
  const ProblemShape long_shape{.heads = 2, .q_len = 1100, .kv_len = 1000};
  std::array<Compiler*, 1> compilers{&bench.compiler};
  LocalExecutor executor(bench.spec, long_shape, bench.device, compilers, nullptr, 7,
                         Pass::kBackward);
  for (const auto& [index, right] : {std::pair(3u, true), std::pair(0u, false)}) {
    ASSERT_TRUE(executor.compile(plans[index]).ok());
    const Status status = executor.verify(plans[index]);
    ASSERT_EQ(status.ok(), right) << (right ? render(status.error()) : "a wrong one");
    if (right) continue;
    EXPECT_EQ(rejection_reason(status.error()), "miscompute");
    EXPECT_THAT(status.error().message, testing::HasSubstr("of the rows that were looked at, dk"));
  }
}

// Runs of a tuner are compared with each other.
TEST(LocalExecutor, TimesTheSameDocumentsWhateverItsSeed) {
  const ProblemShape shape{.q_len = 200, .kv_len = 200};
  const auto spec = parse_spec(
      "attune: 1\nname: doc\ndtype: fp32\nhead_dim: 16\ntarget: [cpu]\n"
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\nmask: document(doc)\n",
      "doc.yaml");
  ASSERT_TRUE(spec.ok());
  std::vector<std::vector<int>> documents;
  for (const std::uint64_t seed : {3, 4}) {
    FakeDevice device([](const KernelPlan&) { return Planted{}; });
    FakeCompiler compiler;
    LocalExecutor executor(*spec, shape, device, std::array<Compiler*, 1>{&compiler}, nullptr,
                           seed);
    const Candidate candidate = plans_by_cost(*spec, shape, device.facts())->front();
    ASSERT_TRUE(executor.compile(candidate).ok());
    ASSERT_TRUE(executor.time_us(candidate).ok());
    documents.push_back(device.tensor);
  }
  EXPECT_GT(documents[0].back(), 0) << "more than one document";
  EXPECT_EQ(documents[0], documents[1]);
}

TEST(VerificationShapes, KeepLengthsAndGroupsAndAddARaggedOne) {
  const auto verification_shapes = [](const ProblemShape& shape, const AttentionSpec& spec = {}) {
    return attune::verification_shapes(spec, Pass::kForward, shape);
  };
  const auto shapes =
      verification_shapes({.batch = 8, .heads = 32, .kv_heads = 8, .q_len = 4096, .kv_len = 8192});
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0], (ProblemShape{2, 8, 2, 4096, 8192}));
  EXPECT_EQ(shapes[1].heads, 8);
  EXPECT_LT(shapes[1].q_len, 4096);
  const auto square =
      verification_shapes({.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 4096, .kv_len = 4096});
  EXPECT_EQ(square[1].q_len, square[1].kv_len) << "a spec may need square problems";
  const ProblemShape square_ragged = square[1];
  EXPECT_EQ(verification_shapes({.q_len = 3, .kv_len = 4}).size(), 1u) << "small enough as it is";
  const auto dilated =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: dilated(5)\n", "t.yaml");
  ASSERT_TRUE(dilated.ok()) << render(dilated.error());
  const auto apart = verification_shapes({.q_len = 4000, .kv_len = 4000}, *dilated);
  EXPECT_EQ(apart[1].q_len % 5, 0) << "of plans that take sequences apart";
  EXPECT_NE(apart[1].q_len / 5 % 16, 0) << "ragged";
  EXPECT_EQ(verification_shapes({.q_len = 4001, .kv_len = 4001}, *dilated)[1], square_ragged);
}

TEST(VerificationShapes, FewerPackedSequencesHaveFewerTokens) {
  const auto first = [](const char* layout, const ProblemShape& shape) {
    const auto spec = parse_spec(
        std::string("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nlayout: ") + layout, "t.yaml");
    EXPECT_TRUE(spec.ok()) << render(spec.error());
    return verification_shapes(*spec, Pass::kForward, shape)[0];
  };
  const ProblemShape decode{.batch = 64, .heads = 32, .kv_heads = 8, .q_len = 64, .kv_len = 195585};
  EXPECT_EQ(first("thd", decode), (ProblemShape{2, 8, 2, 2, 6113}));
  EXPECT_EQ(first("paged", {.batch = 64, .heads = 32, .kv_heads = 8, .q_len = 64, .kv_len = 8192}),
            (ProblemShape{2, 8, 2, 2, 8192}))
      << "with pages kv_len is of one sequence";
  EXPECT_EQ(first("thd", {.batch = 12, .heads = 2, .kv_heads = 2, .q_len = 8192, .kv_len = 8192}),
            (ProblemShape{2, 2, 2, 1366, 1366}))
      << "as many queries as keys";
}

}  // namespace
}  // namespace attune
