// Hopper's backward plans whose CTAs take key tiles off a counter, where there are many more of
// these than processors, and heads enough that sums of dQ are handed on: against the definition in
// fp64, launch after launch, and faults planted in what is new there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/reference/backward.hpp"
#include "tests/gpu/canary_device.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::gpu_test {
namespace {

// Five key tiles a head, 640 in all.
constexpr ProblemShape kMany{.batch = 8, .heads = 16, .kv_heads = 16, .q_len = 100, .kv_len = 520};
constexpr ProblemShape kGrouped{
    .batch = 4, .heads = 32, .kv_heads = 16, .q_len = 200, .kv_len = 1100};

struct Case {
  const char* name;
  const char* lines;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
// Under the band keys from 200 on have no queries where there are 100.
constexpr Case kCases[] = {
    {"Full", "head_dim: 64\n"},
    {"Causal", "head_dim: 64\nmask: causal\n"},
    {"Band", "head_dim: 64\nmask: abs(q_idx - kv_idx) < 100\n"},
    {"Sink",
     "head_dim: 48\nmask: causal\nsink: sinks[h]\n"
     "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\n"},
    {"Softcap", "head_dim: {qk: 64, v: 32}\nscore: 20 * tanh(score / 20)\ndropout: 0.1\n"},
};

// Of every head the keys from `first` on.
void spoil_keys(HostProblem& problem, int head_dim, std::int64_t first) {
  for (std::vector<double>* matrix : {&problem.k, &problem.v}) {
    for (std::size_t i = 0; i < matrix->size(); ++i) {
      const auto key = static_cast<std::int64_t>(i) / head_dim % problem.shape.kv_len;
      if (key >= first) (*matrix)[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

std::vector<KernelPlan> counter_plans(const AttentionSpec& spec, const DeviceFacts& facts) {
  std::vector<KernelPlan> found;
  for (const KernelPlan& plan : legal_plans(spec, Family::kSm90a, facts, Pass::kBackward)) {
    if (std::get<Sm90aBackwardPlan>(plan.tile).takes_items) found.push_back(plan);
  }
  return found;
}

class Counter : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const DeviceFacts& facts = bank.device().facts();
    if (facts.target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
    forward_ = plans_by_cost(spec_, kMany, facts, Pass::kForward).value().front();
    plans_ = counter_plans(spec_, facts);
    ASSERT_FALSE(plans_.empty());
  }

  const AttentionSpec spec_ = spec_of(fmt::format("name: t\ndtype: bf16\n{}", GetParam().lines));
  KernelPlan forward_;
  std::vector<KernelPlan> plans_;
};

TEST_P(Counter, EveryPlanIsTheDerivative) {
  KernelBank& bank = KernelBank::instance();
  std::vector<Request> requests = {{spec_, forward_}};
  for (const KernelPlan& plan : plans_) requests.push_back({spec_, plan});
  bank.prepare(requests);
  const auto forward = bank.get(spec_, forward_);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  for (const ProblemShape& shape : {kMany, kGrouped}) {
    CanaryDevice device(bank.device());
    const HostProblem problem = random_problem(spec_, shape, 11);
    const auto on_device = BackwardProblem::make(device, spec_, problem, **forward, 11);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    const BackwardOracle oracle = oracle_backward(spec_, problem, (*on_device)->output_gradients());
    for (const KernelPlan& plan : plans_) {
      SCOPED_TRACE(fmt::format("{}, {}", to_string(plan), to_string(shape)));
      const auto backward = bank.get(spec_, plan);
      ASSERT_TRUE(backward.ok()) << render(backward.error());
      for (int launch = 0; launch < 2; ++launch) {
        const auto gradients = (*on_device)->run(**backward);
        ASSERT_TRUE(gradients.ok()) << render(gradients.error());
        EXPECT_EQ(wrong_gradient(*gradients, oracle), "") << "launch " << launch;
      }
    }
    EXPECT_EQ(device.damage(), "");
  }
}

// K and V of keys that no query sees may be anything, in key tiles of their own.
TEST_P(Counter, KeysWithoutQueriesStayOut) {
  if (std::string(GetParam().name) != "Band") GTEST_SKIP() << "every key has queries";
  KernelBank& bank = KernelBank::instance();
  bank.prepare({{spec_, forward_}, {spec_, plans_.front()}});
  const auto forward = bank.get(spec_, forward_), backward = bank.get(spec_, plans_.front());
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  ASSERT_TRUE(backward.ok()) << render(backward.error());
  HostProblem problem = random_problem(spec_, kMany, 13);
  const auto on_device = BackwardProblem::make(bank.device(), spec_, problem, **forward, 13);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  const BackwardOracle oracle = oracle_backward(spec_, problem, (*on_device)->output_gradients());
  spoil_keys(problem, 64, 384);
  const auto spoilt = BackwardProblem::make(bank.device(), spec_, problem, **forward, 13);
  ASSERT_TRUE(spoilt.ok()) << render(spoilt.error());
  const auto gradients = (*spoilt)->run(**backward);
  ASSERT_TRUE(gradients.ok()) << render(gradients.error());
  EXPECT_EQ(wrong_gradient(*gradients, oracle), "");
}

INSTANTIATE_TEST_SUITE_P(Specs, Counter, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

class CounterPlanted : public Counter {};

TEST_P(CounterPlanted, FaultsAreSeen) {
  KernelBank& bank = KernelBank::instance();
  const auto forward = bank.get(spec_, forward_);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const HostProblem problem = random_problem(spec_, kMany, 12);
  const auto on_device = BackwardProblem::make(bank.device(), spec_, problem, **forward, 12);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  const BackwardOracle oracle = oracle_backward(spec_, problem, (*on_device)->output_gradients());
  for (const planted::Fault& fault :
       {planted::Fault{"the last item is not taken",
                       {{"number < item_count(p)", "number < item_count(p) - 1"}}},
        planted::Fault{"sums are handed on as they are",
                       {{"exchange_for_zeros_16(from + (block + w) * 512, numbers[w]);",
                         "load_global_l2_16(from + (block + w) * 512, numbers[w]);"}}},
        planted::Fault{"the first share of a head stays in its sums",
                       {{"if (number >= shares_of_head(p)) return;",
                         "if (number >= shares_of_head(p)) return;\n"
                         "if (number == 0) { if (lane == 0) arrive(&counters->shares_free); "
                         "continue; }"}}},
        planted::Fault{"dV leaves with the next item's number",
                       {{"{shared.v(), kKvSlabBytes, dv_map, k0, h_kv, b}",
                         "{shared.v(), kKvSlabBytes, dv_map, k0 + kTileKv, h_kv, b}"}}}}) {
    planted::EditingCompiler compiler(bank.compiler(), fault);
    const auto built = build(spec_, plans_.front(), compiler, nullptr);
    ASSERT_TRUE(built.ok()) << render(built.error());
    const auto faulty = bank.device().load(spec_, plans_.front(), built->code.image);
    ASSERT_TRUE(faulty.ok()) << render(faulty.error());
    const auto gradients = (*on_device)->run(**faulty);
    ASSERT_TRUE(gradients.ok()) << render(gradients.error());
    EXPECT_NE(wrong_gradient(*gradients, oracle), "") << fault.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CounterPlanted, testing::Values(kCases[0], kCases[1]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
