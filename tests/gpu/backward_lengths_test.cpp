// The backward kernels of every family over head dims, lengths around tiles and far beyond, and
// head groups: short ones against the definition in fp64, long ones against the GPU's own oracle.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "runtime/support/parallel.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/judged_gradients.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kHeadDims[] = {
    "16", "40", "64", "80", "96", "128", "192", "256", "{qk: 192, v: 128}"};
constexpr std::int64_t kShort[] = {1, 17, 127, 128, 129};
constexpr std::int64_t kLong[] = {1000, 4096};

struct Case {
  std::string name;
  std::string yaml;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const std::string dtype : {"bf16", "fp16", "fp32", "fp32\nprecision: tf32"}) {
    for (const std::string dims : kHeadDims) {
      for (const std::string mask : {"true", "causal"}) {
        const bool is_fp32 = dtype.starts_with("fp32");
        if (is_fp32 && mask == "true") continue;  // the others have every mask
        found.push_back(
            {fmt::format("{}_d{}_{}", dtype == "fp32" || !is_fp32 ? dtype : "tf32",
                         dims.starts_with("{") ? "192x128" : dims, mask),
             fmt::format("name: test\ndtype: {}\nhead_dim: {}\nmask: {}\n", dtype, dims, mask)});
      }
    }
  }
  for (const std::string dims : {"64", "128"}) {
    for (const std::string mask : {"true", "causal"}) {
      found.push_back({fmt::format("relaxed_d{}_{}", dims, mask),
                       fmt::format("name: test\ndtype: bf16\naccuracy: relaxed\nhead_dim: {}\n"
                                   "mask: {}\n",
                                   dims, mask)});
    }
  }
  return found;
}

BackwardPlans plans_of(const AttentionSpec& spec) {
  return cheapest_of_both_passes(spec, kPlanShape, KernelBank::instance().device().facts());
}

// One, four and eight query heads a K/V head, as long as the keys.
std::vector<ProblemShape> shapes_of(std::int64_t length, std::int64_t heads_alone) {
  return {{.heads = heads_alone, .kv_heads = heads_alone, .q_len = length, .kv_len = length},
          {.heads = 4, .kv_heads = 1, .q_len = length, .kv_len = length},
          {.heads = 8, .kv_heads = 1, .q_len = length, .kv_len = length}};
}

class BackwardLengths : public testing::TestWithParam<Case> {
 protected:
  // The kernels of all cases that run.
  static void prepare(const char* suite) {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    std::vector<Request> requests;
    for (const Case& c : cases()) {
      if (!will_run(suite, c.name)) continue;
      const AttentionSpec spec = spec_of(c.yaml);
      std::ranges::copy(requests_of(spec, plans_of(spec)), std::back_inserter(requests));
    }
    bank.prepare(requests);
  }
  static void SetUpTestSuite() { prepare("HeadDims/BackwardLengths"); }
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
    plans_ = plans_of(spec_);
    ASSERT_FALSE(plans_.backward.empty());
  }

  const AttentionSpec spec_ = spec_of(GetParam().yaml);
  BackwardPlans plans_;
};

TEST_P(BackwardLengths, AreTheDerivative) {
  std::uint64_t seed = std::hash<std::string>{}(GetParam().name);
  for (const std::int64_t length : kShort) {
    for (const ProblemShape& shape : shapes_of(length, 2))
      EXPECT_TRUE(judge_backward(spec_, shape, ++seed, plans_.forward, plans_.backward));
  }
}

const auto kName = [](const testing::TestParamInfo<Case>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(HeadDims, BackwardLengths, testing::ValuesIn(cases()), kName);

class LongBackward : public BackwardLengths {
 protected:
  // Their oracles too, which no cache has.
  static void SetUpTestSuite() {
    prepare("HeadDims/LongBackward");
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    for (const Case& c : cases()) {
      if (will_run("HeadDims/LongBackward", c.name)) oracles_.emplace(c.name, Error{});
    }
    std::vector<std::string> names;
    for (const auto& [name, oracle] : oracles_) names.push_back(name);
    const std::vector<Case> all = cases();
    parallel_for(static_cast<std::int64_t>(names.size()), [&](std::int64_t i) {
      const std::string& name = names[static_cast<std::size_t>(i)];
      const auto c = std::ranges::find(all, name, &Case::name);
      oracles_.at(name) = GradientOracle::make(bank.device(), bank.compiler(), spec_of(c->yaml));
    });
  }
  static void TearDownTestSuite() { oracles_.clear(); }

  static inline std::map<std::string, Result<std::unique_ptr<GradientOracle>>> oracles_;
};

TEST_P(LongBackward, IsTheDerivative) {
  KernelBank& bank = KernelBank::instance();
  const auto& oracle = oracles_.at(GetParam().name);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const auto forward = bank.get(spec_, plans_.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  std::uint64_t seed = 3;
  for (const std::int64_t length : kLong) {
    for (const ProblemShape& shape : shapes_of(length, 4)) {
      const auto judged = JudgedGradients::make(spec_, shape, **forward, **oracle, ++seed);
      ASSERT_TRUE(judged.ok()) << render(judged.error());
      for (const KernelPlan& plan : plans_.backward) {
        SCOPED_TRACE(to_string(plan) + ", " + to_string(shape));
        const auto kernel = bank.get(spec_, plan);
        ASSERT_TRUE(kernel.ok()) << render(kernel.error());
        const auto verdict = (*judged)->of(**kernel);
        ASSERT_TRUE(verdict.ok()) << render(verdict.error());
        EXPECT_EQ(verdict->wrong, "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, LongBackward, testing::ValuesIn(cases()), kName);

}  // namespace
}  // namespace attune::gpu_test
