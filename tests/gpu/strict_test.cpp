// `accuracy: strict` holds what it promises: on rows that few keys decide, the error of a kernel
// whose largest exponentials are exact where they decide. Kernels of `accuracy: fast` do not, on
// the same numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>
#include <vector>

#include "generator/plan/family.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/score_offsets.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShape = {
    .batch = 1, .heads = 1, .kv_heads = 1, .q_len = 250, .kv_len = 987};
constexpr double kMost = 1.05;  // of the error that the arithmetic described below makes

// O of a row by FlashAttention-3's arithmetic, exact but for its roundings to the dtype: blocks of
// keys from the last to the first, exponentials of what a score is below the largest so far,
// rounded for the product with V, their sum not; O.
std::vector<double> rounded_row(const AttentionSpec& spec, const HostProblem& problem, int q_idx) {
  constexpr std::size_t kBlock = 128;
  const auto dim = static_cast<std::size_t>(spec.head_dim_qk);
  const auto keys = static_cast<std::size_t>(
      spec.mask ? q_idx + 1 + problem.shape.kv_len - problem.shape.q_len : problem.shape.kv_len);
  const double* q = problem.q.data() + static_cast<std::size_t>(q_idx) * dim;
  std::vector<double> scores(keys);
  for (std::size_t key = 0; key < keys; ++key) {
    scores[key] = spec.softmax_scale.value *
                  std::inner_product(q, q + dim, problem.k.data() + key * dim, 0.0);
  }
  std::vector<double> o(dim);
  double sum = 0, maximum = -std::numeric_limits<double>::infinity();
  for (std::size_t end = keys; end > 0; end = (end - 1) / kBlock * kBlock) {
    const std::size_t begin = (end - 1) / kBlock * kBlock;
    const double before = maximum;
    for (std::size_t key = begin; key < end; ++key) maximum = std::max(maximum, scores[key]);
    const double shrink = std::exp(before - maximum);
    sum *= shrink;
    for (double& value : o) value *= shrink;
    for (std::size_t key = begin; key < end; ++key) {
      const double p = std::exp(scores[key] - maximum);
      sum += p;
      const double rounded = round_to(spec.dtype, p);
      for (std::size_t i = 0; i < dim; ++i) o[i] += rounded * problem.v[key * dim + i];
    }
  }
  for (double& value : o) value = round_to(spec.dtype, value / sum);
  return o;
}

double mean_error(const std::vector<double>& o, const std::vector<double>& exact) {
  double sum = 0;
  for (std::size_t i = 0; i < o.size(); ++i) sum += std::abs(o[i] - exact[i]);
  return sum / double(o.size());
}

struct Case {
  const char* dtype;
  int head_dim;
  const char* mask;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.dtype << ' ' << c.head_dim << c.mask; }

class Strict : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    for (const bool strict : {true, false}) {
      const Case& c = GetParam();
      AttentionSpec& spec = strict ? strict_ : fast_;
      spec = spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: {}\n{}{}", c.dtype, c.head_dim,
                                 c.mask, strict ? "accuracy: strict\n" : ""));
      std::vector<Request> requests;
      for (const KernelPlan& plan : plans_of_families(spec, kShape, bank.device().facts())) {
        requests.push_back({spec, plan});
      }
      bank.prepare(requests);
    }
  }

  // The mean error of each family's kernel, as a multiple of rounded_row()'s.
  void judge_errors(const AttentionSpec& spec, const HostProblem& problem,
                    const std::function<void(const KernelPlan&, double)>& verdict) {
    KernelBank& bank = KernelBank::instance();
    const std::vector<Row> rows = all_rows(kShape);
    const std::vector<double> exact = oracle_forward(spec, problem, rows).o.values;
    std::vector<double> rounded;
    for (const Row& row : rows) {
      const std::vector<double> o = rounded_row(spec, problem, row.q_idx);
      rounded.insert(rounded.end(), o.begin(), o.end());
    }
    auto on_device = DeviceProblem::upload(bank.device(), spec, problem);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    for (const KernelPlan& plan : plans_of_families(spec, kShape, bank.device().facts())) {
      auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto run = [&]() -> Result<HostOutput> {
        ATT_CHECK((*on_device)->poison());
        ATT_CHECK((*on_device)->prepare(**kernel));
        ATT_CHECK((*on_device)->launch(**kernel, nullptr));
        ATT_CHECK(bank.device().synchronize());
        return (*on_device)->download(rows);
      };
      const auto out = run();
      ASSERT_TRUE(out.ok()) << render(out.error());
      const double ratio = mean_error(out->o, exact) / mean_error(rounded, exact);
      std::cout << fmt::format("{} {}: {:.3f}\n",
                               spec.accuracy == Accuracy::kStrict ? "strict" : "fast",
                               to_string(plan), ratio);
      verdict(plan, ratio);
    }
  }

  // Normal numbers, Q times `factor`.
  HostProblem peaked(const AttentionSpec& spec, double factor) const {
    HostProblem problem = random_problem(spec, kShape, 41);
    for (double& value : problem.q) value = round_to(spec.dtype, value * factor);
    return problem;
  }

  AttentionSpec strict_, fast_;
};

TEST_P(Strict, ErrsNoMoreThanItsRoundings) {
  const auto holds = [&](const HostProblem& problem, const char* what) {
    judge_errors(strict_, problem, [&](const KernelPlan& plan, double ratio) {
      EXPECT_LE(ratio, kMost) << to_string(plan) << ", " << what;
    });
  };
  for (const double factor : {1.0, 2.0, 4.0, 12.0})
    holds(peaked(strict_, factor), "Q times a factor");
  const auto dim = static_cast<std::size_t>(strict_.head_dim_qk);
  HostProblem hot = peaked(strict_, 1);
  for (std::size_t i = 0; i < hot.q.size(); i += dim) hot.q[i] = 1;
  for (std::size_t i = 0; i < hot.k.size(); i += dim) {
    const bool is_hot = i / dim == 500;
    hot.k[i] = is_hot ? round_to(strict_.dtype, 12 / strict_.softmax_scale.value) : 0;
  }
  holds(hot, "one hot key");
  for (const double shift : {115.0, -115.0}) {
    HostProblem shifted = peaked(strict_, 4);
    offset_scores(strict_, shifted, 0,
                  [&](int, int) { return ScoreOffsets{.early = shift, .late = shift}; });
    holds(shifted, "all scores shifted");
  }
}

// Else the test above would be none. (The decode family's largest exponentials are always exact,
// and so are those of the sm80 family in fp16 on such data.)
TEST_P(Strict, IsMoreThanFast) {
  for (const double factor : {4.0, 12.0}) {
    judge_errors(fast_, peaked(fast_, factor), [&](const KernelPlan& plan, double ratio) {
      if (plan.family() == Family::kDecode) return;
      if (plan.family() == Family::kSm80 && fast_.dtype == DType::kF16) return;
      EXPECT_GT(ratio, kMost) << to_string(plan);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Strict,
                         testing::Values(Case{"bf16", 64, ""}, Case{"bf16", 128, "mask: causal\n"},
                                         Case{"bf16", 256, ""}, Case{"fp16", 64, "mask: causal\n"},
                                         Case{"fp16", 128, ""},
                                         Case{"fp16", 256, "mask: causal\n"}),
                         [](const auto& test) {
                           return fmt::format("{}_{}{}", test.param.dtype, test.param.head_dim,
                                              *test.param.mask ? "_causal" : "");
                         });

// What else a kernel may do to scores and exponentials.
TEST(StrictKernels, DropScaleAndAdd) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  for (const char* lines :
       {"head_dim: 128\nmask: causal\ndropout: 0.2\n", "head_dim: 64\nsoftmax_scale: float\n",
        "head_dim: 128\nscore: score + 0.25 * (kv_idx - q_idx)\n",
        "head_dim: 192\nmask: sliding_window(100)\nsink: 2.0\n"}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      const AttentionSpec spec =
          spec_of(fmt::format("name: test\ndtype: {}\naccuracy: strict\n{}", dtype, lines));
      const auto plans = plans_of_families(spec, kShape, bank.device().facts());
      std::vector<Request> requests;
      for (const KernelPlan& plan : plans) requests.push_back({spec, plan});
      bank.prepare(requests);
      EXPECT_TRUE(judge(spec, random_problem(spec, kShape, 43), plans)) << dtype << '\n' << lines;
    }
  }
}

}  // namespace
}  // namespace attune::gpu_test
