// The verdict by each row's own error: kernels are simulated here, one rounding at a time.
#include "runtime/reference/judge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Judge, PutsTheNonFinitePatternFirstAndNamesTheWorstElement) {
  const Expected expected = {"dq", 2, {1, 2, -kInfinity, kNan}, {0.1, 0.1, 0, 0}};
  EXPECT_THAT(judge(expected, std::vector{1.0625, 2.0, -kInfinity, kNan}).wrong, IsEmpty());
  EXPECT_THAT(judge(expected, std::vector{1.2, 2.5, -kInfinity, kNan}).wrong,
              HasSubstr("dq[row 0, column 1] = 2.5, should be 2 +- 0.1; 2 of 4 elements"));
  EXPECT_THAT(judge(expected, std::vector{1.0, kNan, -kInfinity, kNan}).wrong,
              HasSubstr("1 of 4 elements"));
  EXPECT_THAT(judge(expected, std::vector{1.0, 2.0, kInfinity, kNan}).wrong,
              HasSubstr("dq[row 1, column 0]"));
  EXPECT_THAT(judge(expected, std::vector{1.0, 2.0, -kInfinity, 0.0}).wrong,
              HasSubstr("dq[row 1, column 1]"));
  EXPECT_THAT(judge(expected, std::vector{1.0}).wrong, HasSubstr("1 elements instead of 4"));
  EXPECT_DOUBLE_EQ(judge(expected, std::vector{1.05, 2.0, -kInfinity, kNan}).worst, 0.5);
}

TEST(Judge, ARowWithoutLiveKeyIsExactlyZero) {
  const Expected dead = {"o", 2, {0, 0}, {0, 0}};
  EXPECT_THAT(judge(dead, std::vector{0.0, -0.0}).wrong, IsEmpty());
  EXPECT_EQ(judge(dead, std::vector{0.0, 1e-30}).worst, kInfinity);
}

// To 11 bits.
float tf32(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

// What a kernel computes on a matrix unit: fp32 sums, P rounded to the dtype, O rounded; of tf32
// whatever is multiplied.
// `reference` is what its exponentials subtract from the scores, beyond the largest.
HostOutput simulated(const AttentionSpec& spec, const HostProblem& problem, double reference,
                     bool rounds_p) {
  const bool rounds_all = spec.precision == Precision::kTf32;
  const auto operand = [&](double x) { return rounds_all ? tf32(x) : static_cast<float>(x); };
  const ProblemShape& s = problem.shape;
  HostOutput out;
  const auto n = static_cast<std::size_t>(s.kv_len);
  const auto dim = static_cast<std::size_t>(spec.head_dim_v);
  for (const Row& row : all_rows(s)) {
    const auto q = static_cast<std::size_t>(row.h * s.q_len + row.q_idx) * dim;
    const auto kv = static_cast<std::size_t>(row.h / (s.heads / s.kv_heads)) * n * dim;
    const std::size_t keys =
        spec.mask ? std::min(n, n - static_cast<std::size_t>(s.q_len - 1 - row.q_idx)) : n;
    std::vector<float> p(keys);
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::size_t k = 0; k < keys; ++k) {
      float sum = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        sum = std::fma(operand(problem.q[q + d]), operand(problem.k[kv + k * dim + d]), sum);
      }
      p[k] = sum * static_cast<float>(spec.softmax_scale.value);
      maximum = std::max(maximum, p[k]);
    }
    float total = 0;
    for (float& x : p) {
      x = std::exp(x - maximum - static_cast<float>(reference));
      total += x;
      if (rounds_p) x = rounds_all ? tf32(x) : static_cast<float>(round_to(spec.dtype, x));
    }
    for (std::size_t d = 0; d < dim; ++d) {
      float sum = 0;
      for (std::size_t k = 0; k < keys; ++k) {
        sum = std::fma(p[k], operand(problem.v[kv + k * dim + d]), sum);
      }
      out.o.push_back(round_to(spec.dtype, sum / total));
    }
    out.lse.push_back(maximum + static_cast<float>(reference) + std::log(total));
  }
  return out;
}

struct Case {
  DType dtype;
  std::int64_t q_len, kv_len;
  bool causal;
  Precision precision = Precision::kStrict;
};

class SimulatedKernel : public testing::TestWithParam<Case> {
 protected:
  SimulatedKernel() {
    const Case& c = GetParam();
    const std::string yaml = std::string("attune: 1\nname: t\ndtype: bf16\nhead_dim: 32\n") +
                             (c.causal ? "mask: causal\n" : "");
    spec_ = *parse_spec(yaml, "t.yaml");
    spec_.dtype = c.dtype;
    spec_.precision = c.precision;
    problem_ = random_problem(
        spec_, {.heads = 4, .kv_heads = 2, .q_len = c.q_len, .kv_len = c.kv_len}, 11);
  }
  // Else fp32 as the CPU family has it.
  bool on_matrix_unit() const {
    return spec_.dtype != DType::kF32 || spec_.precision == Precision::kTf32;
  }
  AttentionSpec spec_;
  HostProblem problem_;
};

TEST_P(SimulatedKernel, IsRightAndNearEnoughToTheLimitThatItTells) {
  const bool matrix = on_matrix_unit();
  const ForwardOracle oracle =
      oracle_forward(spec_, problem_, matrix ? Arithmetic::kMatrixUnit : Arithmetic::kVector);
  for (const double reference : {0.0, 0.3, 5.545}) {  // 8 binary orders
    const HostOutput out = simulated(spec_, problem_, reference, matrix);
    const Verdict verdict = judge(oracle.o, out.o);
    EXPECT_THAT(verdict.wrong, IsEmpty());
    EXPECT_LT(verdict.worst, 0.85) << "too tight for ten thousand runs";
    EXPECT_GT(verdict.worst, 0.1) << "too wide to find anything";
    EXPECT_THAT(judge(oracle.lse, out.lse).wrong, IsEmpty());
  }
}

// What was let pass once: the tolerance of row 0, which is V[0], for all rows.
TEST_P(SimulatedKernel, ATileLeftOutIsSeenAtAnyLength) {
  const bool matrix = on_matrix_unit();
  const Arithmetic arithmetic = matrix ? Arithmetic::kMatrixUnit : Arithmetic::kVector;
  const ForwardOracle oracle = oracle_forward(spec_, problem_, arithmetic);
  HostProblem spoilt = problem_;
  const std::int64_t last = problem_.shape.kv_len - 1;
  for (std::int64_t k = std::max<std::int64_t>(0, last - 15); k <= last; ++k) {
    for (int d = 0; d < 32; ++d) spoilt.v[static_cast<std::size_t>(k * 32 + d)] = 0;
  }
  EXPECT_GT(judge(oracle.o, simulated(spec_, spoilt, 0, matrix).o).worst, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, SimulatedKernel,
    testing::Values(Case{DType::kBf16, 70, 70, true}, Case{DType::kBf16, 16, 4096, false},
                    Case{DType::kF16, 70, 70, true}, Case{DType::kF16, 16, 4096, false},
                    Case{DType::kF32, 70, 70, true}, Case{DType::kF32, 1, 513, false},
                    Case{DType::kF32, 4, 16384, false},
                    Case{DType::kF32, 70, 70, true, Precision::kTf32},
                    Case{DType::kF32, 16, 1024, false, Precision::kTf32}));

}  // namespace
}  // namespace attune
