// A cache of fp8 with queries of 16 bits: the decode family's kernels, scales of every kind.
#include <algorithm>
#include <cmath>

#include "runtime/reference/cache_scales.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kSpecs[] = {
    "layout: paged\nhead_dim: 128\n",
    "layout: paged\nhead_dim: 64\nmask: causal and (q_pos - kv_idx < 100 or kv_idx < 4)\n",
    "layout: paged\nhead_dim: 80\nmask: causal\nscore: 20 * tanh(score / 20)\n",
    "layout: paged\nhead_dim: {qk: 192, v: 128}\nmask: causal\nsoftmax_scale: float\n",
    "layout: paged\nhead_dim: 256\nsink: sinks[h]\n"
    "tensors: {sinks: {dtype: float32, dims: [heads]}}\n",
};
// Steps of both sizes; rings that go round at once, and late; one piece, and many.
constexpr const char* kPlans[] = {"q16 k16 s3 w4 p1",  "q16 k32 s2 w4 p3",
                                  "q16 k16 s6 w8 p12", "q16 k16 s3 w4 p16 stretches",
                                  "q32 k16 s3 w4 p4",  "q16 k16 s4 w4 p8 cluster"};

std::vector<KernelPlan> plans_of(const AttentionSpec& spec) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  std::vector<KernelPlan> plans;
  for (const char* text : kPlans) {
    const auto plan =
        parse_plan(fmt::format("decode forward {} {}", to_string(facts.target), text));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    if (plan.ok() && check_plan(spec, *plan, facts).ok()) plans.push_back(*plan);
  }
  return plans;
}

AttentionSpec cached_spec(const char* dtype, const std::string& lines) {
  return spec_of(fmt::format("name: t\ndtype: {}\nkv_dtype: fp8_e4m3\n{}", dtype, lines));
}

class GpuFp8Cache : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  }
};

TEST_P(GpuFp8Cache, PagedBatches) {
  KernelBank& bank = KernelBank::instance();
  std::vector<std::pair<AttentionSpec, std::vector<KernelPlan>>> all;
  std::vector<Request> requests;
  for (const char* lines : kSpecs) {
    const AttentionSpec spec = cached_spec(GetParam(), lines);
    all.emplace_back(spec, plans_of(spec));
    EXPECT_GE(all.back().second.size(), 1u) << lines;
    for (const KernelPlan& plan : all.back().second) requests.push_back({spec, plan});
  }
  bank.prepare(requests);
  std::uint64_t seed = 100;
  for (const auto& [spec, plans] : all) {
    const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 8, seed += 1000);
    const auto garbage = paged::garbage_problems(spec);
    for (const KernelPlan& plan : plans) {
      SCOPED_TRACE(fmt::format("{}\n{}", canonical_text(spec), to_string(plan)));
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      paged::check_cases(bank.device(), **kernel, spec, cases);
      if (spec.sink == nullptr) paged::check_empty(bank.device(), **kernel, spec);
      paged::check_garbage(bank.device(), **kernel, spec, garbage);
      if (HasFatalFailure()) return;
    }
  }
}

// Also that a second launch gives the same bits.
TEST_P(GpuFp8Cache, OtherLayouts) {
  for (const char* layout : {"bshd", "bhsd"}) {
    SCOPED_TRACE(layout);
    const AttentionSpec spec =
        cached_spec(GetParam(), fmt::format("layout: {}\nhead_dim: 128\nmask: causal\n", layout));
    const HostProblem problem = random_problem(
        spec, {.batch = 3, .heads = 8, .kv_heads = 2, .q_len = 3, .kv_len = 1111}, 5);
    EXPECT_TRUE(judge(spec, problem, plans_of(spec)));
  }
  const AttentionSpec spec = cached_spec(GetParam(), "layout: thd\nhead_dim: 64\nmask: causal\n");
  KernelBank& bank = KernelBank::instance();
  for (const KernelPlan& plan : plans_of(spec)) {
    const auto kernel = bank.get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const HostProblem problem = random_problem(
        spec, {.batch = 5, .heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 1500}, 6);
    const std::vector<Row> rows = all_rows(problem);
    const auto out = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
    ASSERT_TRUE(out.ok()) << render(out.error());
    EXPECT_EQ(compare(*out, oracle_forward(spec, problem, rows)).wrong, "") << to_string(plan);
  }
}

// Queries whose rows differ by many orders, and whose elements do: bf16 becomes fp16 by row.
TEST_P(GpuFp8Cache, QueriesOfEverySize) {
  const AttentionSpec spec = cached_spec(GetParam(), "layout: bshd\nhead_dim: 64\n");
  HostProblem problem =
      random_problem(spec, {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 2, .kv_len = 300}, 7);
  const bool is_bf16 = spec.dtype == DType::kBf16;
  for (std::size_t i = 0; i < problem.q.size(); ++i) {
    const int row = static_cast<int>(i / 64);
    const int power = is_bf16 ? 8 * row - 110 : row - 10;
    problem.q[i] = round_to(spec.dtype, std::ldexp(problem.q[i], i % 64 == 9 ? power + 7 : power));
  }
  EXPECT_TRUE(judge(spec, problem, plans_of(spec)));
}

// 0x7f is NaN, which GPUs take for the number that it would be otherwise.
TEST_P(GpuFp8Cache, NanOfALiveKeyIs480) {
  const AttentionSpec spec = cached_spec(GetParam(), "layout: bshd\nhead_dim: 64\n");
  HostProblem problem =
      random_problem(spec, {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 1, .kv_len = 100}, 7);
  problem.v[40 * 64 + 13] = 480 * problem.v_scales.of(0, 0);
  EXPECT_TRUE(judge(spec, problem, plans_of(spec)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuFp8Cache, testing::Values("bf16", "fp16"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace attune::gpu_test
