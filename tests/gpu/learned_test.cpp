// Gradients of what specs learn on the GPU families: against the definition in fp64, the same to
// the bit at every launch where the spec says so, and faults that are planted in them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "runtime/reference/backward.hpp"
#include "runtime/support/parallel.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/same_bits.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::gpu_test {
namespace {

using planted::EditingCompiler;
using planted::Fault;

// T5's: a bucket a distance below 8, then two a doubling.
const std::string kBuckets =
    "bias[h, (16 if kv_idx > q_idx else 0) + (abs(kv_idx - q_idx) if abs(kv_idx - q_idx) < 8 else "
    "min(15, 2 + floor(log2(min(abs(kv_idx - q_idx), 128) * min(abs(kv_idx - q_idx), 128) + "
    "0.5))))]";

std::string table(const char* dims) {
  return fmt::format("tensors: {{bias: {{dtype: float32, dims: {}, grad: true}}}}\n", dims);
}

struct Lines {
  const char* name;
  std::string text;
  bool has_order = true;  // there are plans with `deterministic: true`
};
std::vector<Lines> learning() {
  return {
      {"Buckets64", "head_dim: 64\n" + table("[heads, 32]") + "score: score + " + kBuckets + "\n"},
      {"BucketsCausal128", "head_dim: 128\nmask: causal\n" + table("[heads, 32]") +
                               "score: score + " + kBuckets + "\n"},
      {"BucketsOfAll", "head_dim: 64\nmask: causal\n" + table("[40]") +
                           "score: score + bias[max(0, min(39, q_idx - kv_idx))]\n"},
      {"BucketsWindow256", "head_dim: 256\nmask: sliding_window(150)\n" + table("[heads, 32]") +
                               "score: score + " + kBuckets + "\n"},
      {"Distances128", "head_dim: 128\n" + table("[heads, 255]") +
                           "score: score + bias[h, max(0, min(254, kv_idx - q_idx + 127))]\n"},
      {"DistancesCappedDropout64",
       "head_dim: 64\nmask: causal\ndropout: 0.2\n" + table("[heads, 64]") +
           "score: 5 * tanh((score + bias[h, max(0, min(63, q_idx - kv_idx))]) / 5)\n"},
      {"FarDistancesCapped96",
       "head_dim: 96\n" + table("[kv_heads, 600]") +
           "score: 5 * tanh((score + bias[h_kv, max(0, min(599, q_idx - kv_idx + 300))]) / 5)\n"},
      {"Grid64", "head_dim: 64\n" + table("[heads, 64]") +
                     "score: score + bias[h, q_idx % 8 * 8 + kv_idx % 8]\n"},
      {"WideGrid128", "head_dim: 128\nmask: causal\n" + table("[heads, 15, 15]") +
                          "score: score + bias[h, max(0, min(14, q_idx // 16 - kv_idx // 16)), "
                          "q_idx % 8 - kv_idx % 8 + 7]\n"},
      {"Kinds64",
       "head_dim: 64\ntensors: {bias: {dtype: float32, dims: [heads, 8], grad: true}, "
       "kind: {dtype: int32, dims: [batch, kv_len]}}\nscore: score + bias[h, kind[b, kv_idx]]\n"},
      {"Slopes128",
       "head_dim: 128\nmask: causal\ntensors: {slope: {dtype: float32, dims: [heads], grad: "
       "true}}\n"
       "score: score + slope[h] * (kv_idx - q_idx) * 0.01\n"},
      {"TwoLookUps64",
       "head_dim: 64\nmask: causal\n" + table("[heads, 32]") +
           "score: score + bias[h, max(0, min(31, q_idx - kv_idx))] + 0.5 * bias[h, 3]\n"},
      {"Sinks64",
       "head_dim: 64\nmask: sliding_window(100)\ntensors: {sinks: {dtype: float32, dims: [heads], "
       "grad: true}}\nsink: sinks[h]\n"},
      {"SharedSinks192",
       "head_dim: 192\ntensors: {sinks: {dtype: float32, dims: [2], grad: true}}\n"
       "sink: sinks[1] * 0.5\n"},
      {"Dense64", "head_dim: 64\nmask: causal\n" + table("[batch, heads, q_len, kv_len]") +
                      "score: score + bias[b, h, q_idx, kv_idx]\n"},
      {"SharedDense64",
       "head_dim: 64\n" + table("[q_len, kv_len]") + "score: score + bias[q_idx, kv_idx]\n"},
      {"BatchesShareDense256", "head_dim: 256\nmask: causal\n" + table("[heads, q_len, kv_len]") +
                                   "score: score + bias[h, q_idx, kv_idx]\n"},
      {"Pooled64",
       "head_dim: 64\n" + table("[q_len, kv_len]") + "score: score + bias[q_idx // 2, kv_idx]\n",
       false},
  };
}

struct Case {
  std::string name;
  AttentionSpec spec;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const Lines& lines : learning()) {
    for (const char* dtype : {"bf16", "fp32"}) {
      for (const bool in_order : {false, true}) {
        if (in_order && !lines.has_order) continue;
        found.push_back(
            {fmt::format("{}_{}{}", lines.name, dtype, in_order ? "_InOrder" : ""),
             spec_of(fmt::format("name: t\ndtype: {}\n{}{}", dtype,
                                 in_order ? "deterministic: true\n" : "", lines.text))});
      }
    }
  }
  return found;
}

constexpr ProblemShape kTypical{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 500, .kv_len = 500};

KernelPlan forward_plan(const AttentionSpec& spec, const DeviceFacts& facts) {
  return plans_of_families(spec, kTypical, facts).front();
}

// The forward plan, and of each family that serves the spec the cheapest backward plan.
std::vector<Request> requests_of(const AttentionSpec& spec, const DeviceFacts& facts) {
  std::vector<Request> requests = {{spec, forward_plan(spec, facts)}};
  const auto plans = plans_by_cost(spec, kTypical, facts, Pass::kBackward);
  EXPECT_TRUE(plans.ok()) << render(plans.error());
  if (!plans.ok()) return requests;
  std::vector<Family> families;
  for (const KernelPlan& plan : *plans) {
    if (std::ranges::find(families, plan.family()) != families.end()) continue;
    families.push_back(plan.family());
    requests.push_back({spec, plan});
  }
  return requests;
}

struct Backward {
  KernelPlan plan;
  std::shared_ptr<LoadedKernel> kernel;
};
// Of each family that serves the spec the cheapest that the compiler builds: at the limit of
// registers ptxas serialises the products of some.
std::vector<Backward> backward_kernels(const AttentionSpec& spec) {
  KernelBank& bank = KernelBank::instance();
  const auto by_cost = plans_by_cost(spec, kTypical, bank.device().facts(), Pass::kBackward);
  EXPECT_TRUE(by_cost.ok()) << render(by_cost.error());
  std::vector<Backward> found;
  std::vector<Family> families;
  if (!by_cost.ok()) return found;
  for (const KernelPlan& plan : *by_cost) {
    if (std::ranges::find(families, plan.family()) != families.end()) continue;
    const auto kernel = bank.get(spec, plan);
    if (!kernel.ok()) {
      EXPECT_NE(kernel.error().message.find("Potential Performance Loss"), std::string::npos)
          << to_string(plan) << ": " << render(kernel.error());
      continue;
    }
    families.push_back(plan.family());
    found.push_back({plan, *kernel});
  }
  EXPECT_FALSE(found.empty());
  return found;
}

class Learned : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    const DeviceFacts& facts = bank.device().facts();
    std::vector<Request> requests;
    for (const Case& c : cases()) {
      if (!will_run("Specs/Learned", c.name)) continue;
      std::ranges::copy(requests_of(c.spec, facts), std::back_inserter(requests));
    }
    bank.prepare(requests);
  }
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  }
};

TEST_P(Learned, IsTheDerivativeInItsOrder) {
  const AttentionSpec& spec = GetParam().spec;
  const KernelPlan forward = forward_plan(spec, KernelBank::instance().device().facts());
  std::vector<KernelPlan> backward;
  for (const Backward& one : backward_kernels(spec)) backward.push_back(one.plan);
  const int launches = spec.deterministic ? 4 : 1;
  std::uint64_t seed = std::hash<std::string>{}(GetParam().name);
  for (const ProblemShape& shape : {ProblemShape{2, 4, 1, 1, 1},
                                    {1, 8, 2, 17, 129},
                                    {2, 2, 2, 127, 128},
                                    {2, 4, 2, 300, 129},
                                    {1, 2, 1, 200, 533}}) {
    EXPECT_TRUE(judge_backward(spec, shape, ++seed, forward, backward, launches));
  }
}

const auto kName = [](const testing::TestParamInfo<Case>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Specs, Learned, testing::ValuesIn(cases()), kName);

// A whole GPU full of CTAs, whose order of arrival differs from launch to launch.
class LearnedInOrder : public testing::TestWithParam<const char*> {};

TEST_P(LearnedInOrder, ManyLaunchesGiveTheSameBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  constexpr ProblemShape kBusy{.batch = 4, .heads = 16, .kv_heads = 8, .q_len = 700, .kv_len = 700};
  const std::vector<Lines> all = learning();
  const auto lines = std::ranges::find(all, std::string_view(GetParam()), &Lines::name);
  ASSERT_NE(lines, all.end());
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\ndeterministic: true\n" + lines->text);
  bank.prepare(requests_of(spec, bank.device().facts()));
  const auto forward = bank.get(spec, forward_plan(spec, bank.device().facts()));
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  constexpr ProblemShape kBeside[] = {kBusy, kTypical, kBusy, kTypical};
  for (const auto& [plan, kernel] : backward_kernels(spec)) {
    const auto different = different_launches(spec, **forward, *kernel, kBeside, 1000);
    ASSERT_TRUE(different.ok()) << to_string(plan) << ": " << render(different.error());
    EXPECT_EQ(*different, 0) << to_string(plan);
  }
}
INSTANTIATE_TEST_SUITE_P(Specs, LearnedInOrder,
                         testing::Values("BucketsCausal128", "Distances128", "Sinks64"),
                         [](const auto& info) { return std::string(info.param); });

// Two query heads a K/V head, whose far distances share a number.
const std::vector<Fault>& faults() {
  static const std::vector<Fault> kFaults = {
      {"a block's diagonals left out",
       {{"gathered = lane / 8 == n % 4 ? of_block",
         "gathered = lane / 8 == n % 4 ? (n == 3 ? 0.0f : of_block)"}}},
      {"a block's diagonals twice",
       {{"gathered = lane / 8 == n % 4 ? of_block",
         "gathered = lane / 8 == n % 4 ? (n == 3 ? 2 * of_block : of_block)"}}},
      {"rows of the wrong block", {{"return is_of_block ? now : before;", "return now;"}}},
      {"the last diagonals forgotten",
       {{"n < Diagonals::blocks(kColumns); ++n", "n + 1 < Diagonals::blocks(kColumns); ++n"}}},
      {"a near tile taken for a far one",
       {{"has_many = !all_lanes(is_same);", "has_many = !all_lanes(is_same) && query % 64 != 0;"}}},
      {"a far number added twice",
       {{"sums.add(to, bins[0], warp_sum(open[0]));\n      open[0] = 0.0f;",
         "sums.add(to, bins[0], warp_sum(open[0]));"}}},
      {"a head's sums to the next head", {{"if (h >= 0 && h != c.h) end(c);", ""}}},
      {"16 keys left out of the total",
       {{"unit < units; unit += kSlices", "unit < units - 1; unit += kSlices"}}},
      {"one number left out of the total",
       {{"if (slice == 0 && column < kBins)", "if (slice == 0 && column < kBins && column != 5)"}}},
  };
  return kFaults;
}

TEST(LearnedPlanted, FaultsAreFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec =
      spec_of("name: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n" + table("[heads, 32]") +
              "score: score + bias[h, max(0, min(31, q_idx - kv_idx))]\n");
  constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 400, .kv_len = 400};
  bank.prepare(requests_of(spec, bank.device().facts()));
  const auto forward = bank.get(spec, forward_plan(spec, bank.device().facts()));
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const HostProblem problem = random_problem(spec, kShape, 6);
  const auto on_device = BackwardProblem::make(bank.device(), spec, problem, **forward, 7);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  const BackwardOracle oracle = oracle_backward(spec, problem, (*on_device)->output_gradients());
  struct Planting {
    const Fault* fault;
    KernelPlan plan;
    Result<BuiltKernel> built = Error{};
  };
  std::vector<Planting> plantings;
  const auto wrong = [&](const LoadedKernel& kernel) {
    const auto gradients = (*on_device)->run(kernel);
    EXPECT_TRUE(gradients.ok()) << render(gradients.error());
    return gradients.ok() ? wrong_gradient(*gradients, oracle) : "no gradients";
  };
  for (const auto& [plan, right] : backward_kernels(spec)) {
    EXPECT_EQ(wrong(*right), "") << to_string(plan) << " without a fault";
    for (const Fault& fault : faults()) plantings.push_back({.fault = &fault, .plan = plan});
  }
  parallel_for(static_cast<std::int64_t>(plantings.size()), [&](std::int64_t i) {
    Planting& planting = plantings[static_cast<std::size_t>(i)];
    EditingCompiler compiler(bank.compiler(), *planting.fault);
    planting.built = build(spec, planting.plan, compiler, nullptr);
  });
  for (const Planting& planting : plantings) {
    SCOPED_TRACE(to_string(planting.plan) + " with " + planting.fault->name);
    ASSERT_TRUE(planting.built.ok()) << render(planting.built.error());
    const auto loaded = bank.device().load(spec, planting.plan, planting.built.value().code.image);
    ASSERT_TRUE(loaded.ok()) << render(loaded.error());
    EXPECT_NE(wrong(**loaded), "");
  }
}

}  // namespace
}  // namespace attune::gpu_test
