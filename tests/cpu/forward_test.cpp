// The CPU family against the fp64 oracle: every spec of the library, then the corners one at a
// time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"
#include "runtime/engine/engine.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tests/cpu/harness.hpp"

namespace attune {
namespace {

using testing_support::Placement;
using testing_support::run_kernel;

AttentionSpec spec_of(const std::string& yaml) {
  auto spec = parse_spec("attune: 1\nname: test\n" + yaml, "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? std::move(spec).value() : AttentionSpec{};
}

class CpuForward : public testing_support::CpuTest {
 protected:
  // The cost model's plan for the problem, judged by the oracle.
  void check(const AttentionSpec& spec, const ProblemShape& shape,
             const Placement& placement = {}) {
    auto plan = default_plan(spec, shape, device_->facts());
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    check_plan(spec, shape, *plan, placement);
  }

  void check_plan(const AttentionSpec& spec, const ProblemShape& shape, const KernelPlan& plan,
                  const Placement& placement = {}) {
    SCOPED_TRACE(fmt::format("{} {} {}", spec.name, to_string(shape), to_string(plan)));
    const LoadedKernel* kernel = kernel_of(spec, plan);
    ASSERT_NE(kernel, nullptr);
    const HostProblem problem = random_problem(spec, shape, ++seed_);
    auto output = run_kernel(*device_, *kernel, spec, problem, placement);
    ASSERT_TRUE(output.ok()) << render(output.error());
    EXPECT_EQ(compare(*output, oracle_forward(spec, problem, Arithmetic::kVector)).wrong, "");
  }

  std::uint64_t seed_ = 7;
};

TEST_F(CpuForward, EverySpecOfTheLibrary) {
  // Lengths that no tile divides, more keys than queries as in decoding with a past, grouped heads.
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    if (!families_for(*spec, Target::kCpu).ok()) continue;
    check(*spec, {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 197, .kv_len = 259});
  }
}

// P stays in fp32 here: strict specs have the kernels of the others.
TEST_F(CpuForward, StrictSpecs) {
  for (const char* dtype : {"fp16", "bf16"}) {
    const AttentionSpec spec =
        spec_of(fmt::format("dtype: {}\nhead_dim: 64\nmask: causal\naccuracy: strict\n", dtype));
    EXPECT_EQ(spec.accuracy, Accuracy::kStrict);
    check(spec, {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 65, .kv_len = 130});
  }
}

TEST_F(CpuForward, EveryStorageTypeAndHeadDim) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const char* dims : {"8", "40", "64", "80", "128", "256", "{qk: 192, v: 128}"}) {
      const AttentionSpec spec =
          spec_of(fmt::format("dtype: {}\nhead_dim: {}\nmask: causal\n", dtype, dims));
      check(spec, {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 67, .kv_len = 131});
    }
  }
}

TEST_F(CpuForward, EveryRegisterBlock) {
  const AttentionSpec spec =
      spec_of("dtype: fp32\nhead_dim: 40\nmask: sliding_window(70)\nscore: score - 0.01 * q_idx\n");
  DeviceFacts narrow = device_->facts();
  narrow.registers_per_processor = 16;
  for (const DeviceFacts& facts : {device_->facts(), narrow}) {
    // Every fourth plan has each block at least twice, with tiles of different sizes.
    const std::vector<KernelPlan> plans = legal_plans(spec, Family::kCpu, facts);
    for (std::size_t i = 0; i < plans.size(); i += 4) {
      check_plan(spec, {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 210, .kv_len = 300},
                 plans[i]);
    }
  }
}

TEST_F(CpuForward, LengthsFromOneKeyOn) {
  const AttentionSpec spec = spec_of("dtype: fp32\nhead_dim: 64\nmask: causal\n");
  for (const std::int64_t q_len : {1, 2, 15, 16, 17, 97}) {
    for (const std::int64_t kv_len : {1, 7, 8, 9, 127, 128, 129, 385}) {
      check(spec, {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len});
    }
  }
}

TEST_F(CpuForward, GroupedHeadsShareATileWhenQueriesAreFew) {
  const AttentionSpec spec = spec_of(
      "dtype: fp32\nhead_dim: 64\nmask: causal\nscore: score - 0.01 * h * (q_idx - kv_idx)\n"
      "tensors: {bias: {dtype: float32, dims: [heads]}}\nsink: bias[h]\n");
  for (const std::int64_t kv_heads : {1, 2, 4, 12}) {
    for (const std::int64_t q_len : {1, 3, 20}) {
      check(spec, {.batch = 2, .heads = 12, .kv_heads = kv_heads, .q_len = q_len, .kv_len = 150});
    }
  }
}

// Functions, bits, local definitions, and tensors of 16-bit floats and of one element.
TEST_F(CpuForward, EverythingThatExpressionsSay) {
  const char* const specs[] = {
      "score: gelu(score) + silu(2 * score) - softplus(score) + cos(0.1 * kv_idx) * sin(score)\n",
      "score: erf(score) * tan(0.001 * (q_idx - kv_idx)) + pow(x, 0.1 * score) + pow(score, 3)\n"
      "scalars: {x: float}\nmask: sin(0.05 * (q_idx - kv_idx)) > -0.5\n",
      "mask: >-\n  let d = q_pos - kv_idx in let near = d < 40 in\n"
      "  d >= 0 and (near or (kv_idx ^ h) & 12 == 4 or (1 << (q_idx & 7) & kv_idx) != 0)\n",
      "mask: causal != (kv_idx >> h < 9)\n",
      "tensors: {half: {dtype: fp16, dims: [heads, kv_len]}, brain: {dtype: bf16, dims: "
      "[kv_len]},\n"
      "  gain: {dtype: fp16, dims: []}, first: {dtype: int32, dims: []},\n"
      "  jump: {dtype: int32, dims: [kv_len]}}\n"
      "mask: kv_idx <= first + 9 or half[h, kv_idx] > brain[q_pos]\n"
      "score: score * (1 + gain) + half[h, jump[kv_idx]] + brain[kv_idx]\n",
      // Sizes that are computed, and indices beyond them.
      "tensors: {live: {dtype: bool, dims: [(q_len + 15) // 16, (kv_len + 31) // 32]},\n"
      "  far: {dtype: float32, dims: [2 * kv_len - 1]}, half: {dtype: int32, dims: [kv_len // "
      "2]}}\n"
      "mask: live[q_idx // 16, kv_idx // 32] or half[kv_idx] > q_idx + 40\n"
      "score: score + far[q_idx - kv_idx + kv_len - 1] - 0.5 * far[3 * kv_idx]\n"};
  for (const char* yaml : specs) {
    check(spec_of(fmt::format("dtype: fp32\nhead_dim: 64\n{}", yaml)),
          {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 213});
  }
}

TEST_F(CpuForward, StridesAreTheCallers) {
  for (const char* layout : {"bshd", "bhsd"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const AttentionSpec spec =
          spec_of(fmt::format("dtype: {}\nhead_dim: 64\nlayout: {}\n", dtype, layout));
      for (const int padding : {0, 8, 40}) {
        check(spec, {.batch = 2, .heads = 3, .kv_heads = 3, .q_len = 50, .kv_len = 133},
              {.padding = padding});
      }
    }
  }
}

TEST_F(CpuForward, DropoutHasTheOraclesBits) {
  // With V the identity and equal scores, O shows which elements were kept.
  AttentionSpec spec = spec_of("dtype: fp32\nhead_dim: 128\ndropout: 0.3\n");
  const ProblemShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 75, .kv_len = 128};
  HostProblem problem = random_problem(spec, shape, 3);
  problem.dropout_seed = 0x123456789abcdef0ull;
  problem.dropout_offset = 0x100000002ull;
  std::fill(problem.q.begin(), problem.q.end(), 0.0);
  for (std::size_t i = 0; i < problem.v.size(); ++i) problem.v[i] = i / 128 % 128 == i % 128;
  // Tiles that begin inside a Philox block, and tiles that hold several heads.
  for (const char* text :
       {"cpu forward cpu q48 k96 u12 c1 v32 t1", "cpu forward cpu q8 k128 u8 c1 v32 t2",
        "cpu forward cpu q256 k128 u8 c1 v32 t1"}) {
    auto plan = parse_plan(text);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    const LoadedKernel* kernel = kernel_of(spec, *plan);
    ASSERT_NE(kernel, nullptr);
    auto output = run_kernel(*device_, *kernel, spec, problem);
    ASSERT_TRUE(output.ok()) << render(output.error());
    int wrong = 0;
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 4; ++h) {
        for (int q = 0; q < 75; ++q) {
          for (int k = 0; k < 128; ++k) {
            const bool is_dropped = dropped(problem.dropout_seed, problem.dropout_offset,
                                            dropout_drop_below(0.3), 4, b, h, q, k);
            const double value =
                output->o[static_cast<std::size_t>(((b * 4 + h) * 75 + q) * 128 + k)];
            wrong += is_dropped ? value != 0 : value <= 0;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << text;
  }
}

TEST_F(CpuForward, DropoutsSeedLiesOnTheDevice) {
  check(spec_of("dtype: bf16\nhead_dim: 64\nmask: causal\ndropout: {p: 0.25, seed: device}\n"),
        {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 180});
}

TEST_F(CpuForward, DropoutAtLaunchAndScaleAtLaunch) {
  check(spec_of("dtype: bf16\nhead_dim: 64\nmask: causal\ndropout: float\nsoftmax_scale: float\n"),
        {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 180});
}

TEST_F(CpuForward, RowsWithoutALiveKeyAreZero) {
  check(spec_of("dtype: fp32\nhead_dim: 64\nmask: causal\n"),
        {.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 200, .kv_len = 60});
  check(spec_of("dtype: fp32\nhead_dim: 64\nmask: q_idx % 3 == 1 and kv_idx > 70\n"),
        {.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 50, .kv_len = 140});
  check(spec_of("dtype: fp32\nhead_dim: 64\n"
                "score: log(score - score) if q_idx % 3 == 1 or kv_idx < 70 else score\n"),
        {.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 50, .kv_len = 140});
}

TEST_F(CpuForward, ScoresFarBelowZeroSurviveRaggedTiles) {
  // Padding rows of the last tile must not enter the maximum.
  const AttentionSpec spec = spec_of("dtype: fp32\nhead_dim: 64\n");
  const ProblemShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 40, .kv_len = 13};
  HostProblem problem = random_problem(spec, shape, 5);
  for (double& value : problem.q) value = 8;
  for (double& value : problem.k) value = -8 - std::abs(value);
  for (double& value : problem.k) value = round_to(DType::kF32, value);
  auto plan = default_plan(spec, shape, device_->facts());
  ASSERT_TRUE(plan.ok());
  const LoadedKernel* kernel = kernel_of(spec, *plan);
  ASSERT_NE(kernel, nullptr);
  auto output = run_kernel(*device_, *kernel, spec, problem);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_EQ(compare(*output, oracle_forward(spec, problem, Arithmetic::kVector)).wrong, "");
}

TEST_F(CpuForward, ScoresOfAnyMagnitudeHaveWeights) {
  // Where a product with log2(e) is rounded by more than exp2 has room for, and where it overflows.
  for (const char* lines :
       {"softmax_scale: 1e9\n", "score: min(score, -1e10)\n", "score: score + 1e30\n",
        "score: 3e38 if kv_idx % 5 == 0 else score\nsink: 1.0\n",
        "score: -3e38 if kv_idx <= q_idx else score\n"}) {
    check(spec_of(std::string("dtype: fp32\nhead_dim: 64\n") + lines),
          {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 50, .kv_len = 140});
  }
}

TEST_F(CpuForward, NanReachesItsRowAndNoOther) {
  const AttentionSpec spec = spec_of("dtype: fp32\nhead_dim: 64\nmask: causal\n");
  const ProblemShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 150, .kv_len = 150};
  HostProblem problem = random_problem(spec, shape, 5);
  problem.q[20 * 64 + 3] = std::nan("");
  problem.k[100 * 64 + 5] = std::nan("");
  auto plan = default_plan(spec, shape, device_->facts());
  ASSERT_TRUE(plan.ok());
  const LoadedKernel* kernel = kernel_of(spec, *plan);
  ASSERT_NE(kernel, nullptr);
  auto output = run_kernel(*device_, *kernel, spec, problem);
  ASSERT_TRUE(output.ok()) << render(output.error());
  for (int q = 0; q < 150; ++q) {
    EXPECT_EQ(std::isnan(output->o[static_cast<std::size_t>(q) * 64]), q == 20 || q >= 100) << q;
  }
}

TEST_F(CpuForward, LseMayBeLeftOut) {
  const AttentionSpec spec = spec_of("dtype: fp32\nhead_dim: 64\n");
  const ProblemShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 5, .kv_len = 5};
  auto plan = default_plan(spec, shape, device_->facts());
  ASSERT_TRUE(plan.ok());
  const LoadedKernel* kernel = kernel_of(spec, *plan);
  ASSERT_NE(kernel, nullptr);
  EXPECT_TRUE(run_kernel(*device_, *kernel, spec, random_problem(spec, shape, 1), {}, false).ok());
}

TEST_F(CpuForward, WhatTheFamilyCannotDoIsSaid) {
  const AttentionSpec spec = spec_of("dtype: fp8_e4m3\nhead_dim: 64\n");
  const auto families = families_for(spec, Target::kCpu);
  ASSERT_FALSE(families.ok());
  EXPECT_EQ(exit_code(families.error().kind), 2);
  EXPECT_NE(families.error().message.find("fp32, bf16 or fp16"), std::string::npos);
}

}  // namespace
}  // namespace attune
