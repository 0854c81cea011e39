// Scores of any magnitude, by every family: additive masks of the lowest float on whole rows, on
// all keys but some, and beside scores that are larger than all that exp2 has room for.
#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/magnitude_faults.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/verification/hostile_gradient_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = std::numeric_limits<float>::lowest();
constexpr double kLowestBf16 = -3.3895313892515355e38;

struct Variant {
  const char* name;
  const char* lines;  // of the spec
};
constexpr Variant kVariants[] = {
    {"Full128", "head_dim: 128\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Full64", "head_dim: 64\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Causal128", "head_dim: 128\nmask: causal\nscore: score + bias[q_idx, kv_idx]\n"},
    {"CausalSink64",
     "head_dim: 64\nmask: causal\nsink: 1.5\nscore: 0.5 * (score + bias[q_idx, kv_idx]) - 3\n"},
    {"Window256",
     "head_dim: 256\nmask: abs(q_idx - kv_idx) < 70\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Capped128",
     "head_dim: 128\nmask: causal\nscore: 30 * tanh(score / 30) + bias[q_idx, kv_idx]\n"},
    {"AlibiOfRows64",
     "head_dim: 64\nmask: causal\nscore: score - 0.25 * (q_pos - kv_idx) + bias[q_idx, 3]\n"},
    {"LineOfRows128", "head_dim: 128\nscore: score + 0.5 * kv_idx + bias[q_idx, 3]\n"},
    {"OfRows128", "head_dim: 128\nscore: score + bias[q_idx, 3]\n"},
    {"Strict128",
     "head_dim: 128\nmask: causal\naccuracy: strict\nscore: score + bias[q_idx, kv_idx]\n"},
    {"StrictFull64", "head_dim: 64\naccuracy: strict\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Invariant128",
     "head_dim: 128\nmask: causal\nbatch_invariant: true\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Dropout128", "head_dim: 128\ndropout: 0.3\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Scaled64", "head_dim: 64\nsoftmax_scale: float\nscore: score + bias[q_idx, kv_idx]\n"},
    {"Least128", "head_dim: 128\nmask: causal\nscore: min(score, -1e10 - 1e9 * (q_idx % 3))\n"},
    {"Most64", "head_dim: 64\nscore: 3e38 if kv_idx % 5 == q_idx % 5 else score\n"},
    {"Constant64", "head_dim: 64\nmask: causal\nscore: score + 1e30\n"},
};

// Of a row and a key.
struct Pattern {
  const char* name;
  double (*bias)(int q, int k);
};
// Those of 1e18 and more absorb what they are added to, in fp64 too, so that the oracle's scores
// are the kernels'.
constexpr Pattern kPatterns[] = {
    {"none", [](int, int) { return 0.0; }},
    {"a third of the rows is lowest", [](int q, int) { return q % 3 == 1 ? kLowest : 0.0; }},
    {"whole tiles are bf16's lowest", [](int q, int) { return q / 64 == 1 ? kLowestBf16 : 0.0; }},
    {"all but one key", [](int, int k) { return k == 5 ? 0.0 : kLowest; }},
    {"all but a late key", [](int q, int k) { return k == q + 20 ? 0.0 : kLowest; }},
    {"two kinds of lowest", [](int q, int k) { return (q + k) % 7 == 2 ? kLowestBf16 : kLowest; }},
    {"infinities but for lowest ones",
     [](int q, int k) { return (q + k) % 9 == 4 ? kLowest : -kInfinity; }},
    {"infinities in rows", [](int q, int) { return q % 4 == 1 ? -kInfinity : 0.0; }},
    {"infinities but one", [](int q, int k) { return k == q / 2 ? 0.0 : -kInfinity; }},
    {"high keys", [](int q, int k) { return (q * 5 + k) % 31 == 3 ? 1e30 : 0.0; }},
    {"high late keys", [](int q, int k) { return k == q && q % 2 == 1 ? 3e38 : 0.0; }},
    {"steps up", [](int, int k) { return (k / 100 + 1) * 1e30; }},
    {"steps down", [](int q, int k) { return -(k / 100 + 1) * (q % 2 == 0 ? 1e20 : 1e37); }},
    {"between both ends",
     [](int q, int k) { return (q + k) % 3 == 0   ? kLowest
                               : (q + k) % 3 == 1 ? 3e38
                                                  : -1e25; }},
};

// Which fp32 has not.
bool is_of_16_bits(const Variant& variant) {
  const std::string_view lines = variant.lines;
  return lines.find("strict") != lines.npos || lines.find("invariant") != lines.npos;
}

class Magnitudes : public testing::TestWithParam<std::tuple<const char*, Variant>> {
 protected:
  static constexpr std::array kShapes = {
      ProblemShape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 420},
      ProblemShape{.batch = 2, .heads = 2, .kv_heads = 1, .q_len = 3, .kv_len = 1500}};

  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const auto& [dtype, variant] = GetParam();
    if (is_of_16_bits(variant) && dtype == std::string_view("fp32")) GTEST_SKIP() << "no such spec";
    spec_ =
        spec_of(fmt::format("name: test\ndtype: {}\n"
                            "tensors: {{bias: {{dtype: float32, dims: [q_len, kv_len]}}}}\n{}",
                            dtype, variant.lines));
    std::vector<Request> requests;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      plans_[i] = plans_of_families(spec_, kShapes[i], bank.device().facts());
      for (const KernelPlan& plan : plans_[i]) requests.push_back({spec_, plan});
    }
    bank.prepare(requests);
  }

  HostProblem problem_with(const ProblemShape& shape, const Pattern& pattern) const {
    HostProblem problem = random_problem(spec_, shape, 29);
    for (expr::TensorValues& bias : problem.tensors) {
      for (int q = 0; q < shape.q_len; ++q) {
        for (int k = 0; k < shape.kv_len; ++k) {
          bias.values[static_cast<std::size_t>(q * shape.kv_len + k)] = pattern.bias(q, k);
        }
      }
    }
    return problem;
  }

  AttentionSpec spec_;
  std::array<std::vector<KernelPlan>, kShapes.size()> plans_;
};

TEST_P(Magnitudes, HaveWeights) {
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    for (const Pattern& pattern : kPatterns) {
      EXPECT_TRUE(judge(spec_, problem_with(kShapes[i], pattern), plans_[i], 1))
          << pattern.name << ", " << kShapes[i].q_len << " queries";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Magnitudes,
                         testing::Combine(testing::Values("bf16", "fp16", "fp32"),
                                          testing::ValuesIn(kVariants)),
                         [](const testing::TestParamInfo<Magnitudes::ParamType>& test) {
                           return fmt::format("{}_{}", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

// ---- Gradients: rows of which the LSE tells nothing have none.

constexpr const char* kRowsOfBias = "score: score + bias[q_idx, 3]\n";

class MagnitudeGradients
    : public testing::TestWithParam<std::tuple<const char*, int, const char*>> {};

TEST_P(MagnitudeGradients, AreThoseOfTheOtherRows) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const auto& [dtype, dim, mask] = GetParam();
  const auto spec_with = [&, dtype = dtype, dim = dim](const std::string& live) {
    return spec_of(
        fmt::format("name: test\ndtype: {}\nhead_dim: {}\nmask: {}\npasses: [forward, backward]\n"
                    "tensors: {{bias: {{dtype: float32, dims: [q_len, kv_len]}}}}\n{}",
                    dtype, dim, live, kRowsOfBias));
  };
  const AttentionSpec spec = spec_with(mask);
  const AttentionSpec others = spec_with(fmt::format("({}) and abs(bias[q_idx, 3]) < 1e7", mask));
  constexpr ProblemShape kShape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 200, .kv_len = 261};
  const BackwardPlans plans = cheapest_of_both_passes(spec, kPlanShape, bank.device().facts());
  const auto forward = bank.get(spec, plans.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  for (const double large : {-1e9, kLowest, 3e10, -1e30, 1e30}) {
    HostProblem problem = random_problem(spec, kShape, 31);
    for (int q = 0; q < kShape.q_len; ++q) {
      const bool is_large = q % 5 == 2 || (q >= 64 && q < 140);
      problem.tensors[0].values[static_cast<std::size_t>(q * kShape.kv_len + 3)] =
          is_large ? large : 0.5;
    }
    const auto made = BackwardProblem::make(bank.device(), spec, problem, **forward, 31);
    ASSERT_TRUE(made.ok()) << render(made.error());
    const BackwardOracle expected =
        oracle_backward(others, problem, (*made)->output_gradients(), true);
    for (const KernelPlan& plan : plans.backward) {
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << to_string(plan) << ": " << render(kernel.error());
      const auto gradients = (*made)->run(**kernel);
      ASSERT_TRUE(gradients.ok()) << render(gradients.error());
      EXPECT_EQ(wrong_gradient(*gradients, expected), "") << to_string(plan) << " of " << large;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MagnitudeGradients,
                         testing::Combine(testing::Values("bf16", "fp16", "fp32"),
                                          testing::Values(64, 128),
                                          testing::Values("true", "causal")));

// ---- Faults.

TEST(PlantedMagnitudes, AreSeen) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(
      "name: test\ndtype: bf16\nhead_dim: 64\nmask: causal\n"
      "score: min(score, -1e12 * (1 + (q_idx + kv_idx) % 2)) if q_idx % 2 == 0 else score\n");
  for (const planted::FaultOfFamily& planted : planted::magnitude_faults()) {
    SCOPED_TRACE(planted.fault.name);
    const ProblemShape shape = {.batch = 1,
                                .heads = 2,
                                .kv_heads = 1,
                                .q_len = planted.family == Family::kDecode ? 3 : 150,
                                .kv_len = 300};
    bool met = false;
    for (const KernelPlan& plan : plans_of_families(spec, shape, bank.device().facts())) {
      if (plan.family() != planted.family) continue;
      met = true;
      EXPECT_TRUE(is_found(planted.fault, spec, shape, plan)) << to_string(plan);
    }
    EXPECT_TRUE(met) << to_string(planted.family);
  }
}

}  // namespace
}  // namespace attune::gpu_test
