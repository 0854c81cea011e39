// Paged sequences, every family that serves them.
#include <iterator>
#include <tuple>

#include "generator/plan/any_pages.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

// Steps of both sizes; one piece, and more than there are units.
constexpr const char* kDecodePlans[] = {"q16 k16 s3 w4 p1",          "q16 k32 s2 w4 p3",
                                        "q16 k16 s4 w8 p12",         "q32 k32 s3 w4 p4",
                                        "q16 k16 s3 w8 p8 cluster",  "q16 k16 s3 w4 p16 stretches",
                                        "q32 k32 s2 w8 p3 stretches"};

std::vector<KernelPlan> decode_plans(const AttentionSpec& spec) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  std::vector<KernelPlan> plans;
  for (const char* text : kDecodePlans) {
    const auto plan =
        parse_plan(fmt::format("decode forward {} {}", to_string(facts.target), text));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    if (plan.ok() && check_plan(spec, *plan, facts).ok()) plans.push_back(*plan);
  }
  return plans;
}

class GpuPaged : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  }

  // The cheapest plan of every family, some others, and the same for pages of any size.
  static std::vector<Request> requests_of(const AttentionSpec& spec) {
    KernelBank& bank = KernelBank::instance();
    const DeviceFacts& facts = bank.device().facts();
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans_of_families(spec, kTypical, facts)) {
      requests.push_back({spec, plan});
      if (plan.family() == Family::kDecode) continue;
      const std::vector<KernelPlan> legal = legal_plans(spec, plan.family(), facts);
      const KernelPlan& other = legal[legal.size() / 2];
      if (!bank.gives_up(spec, other)) requests.push_back({spec, other});
    }
    // Those that bring boxes of rows, and are refused where pages are too small for them, row by
    // row, and with V row by row.
    for (std::size_t i = 0, count = requests.size(); i < count; ++i) {
      const KernelPlan boxes = requests[i].plan;
      for (const auto& twin :
           {plan_for_any_pages(spec, boxes, facts), plan_for_small_boxes(spec, boxes, facts)})
        if (twin) requests.push_back({spec, *twin});
    }
    for (const KernelPlan& plan : decode_plans(spec)) requests.push_back({spec, plan});
    return requests;
  }
};

// One test of a spec: its problems, what is right of them and what is not take longer to make than
// to launch, and all its kernels have the same.
TEST_P(GpuPaged, EveryKernelOnEveryKindOfBatch) {
  KernelBank& bank = KernelBank::instance();
  const auto& [dtype, number] = GetParam();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: {}\n{}", dtype, paged::kSpecs[number]));
  const std::vector<Request> requests = requests_of(spec);
  bank.prepare(requests);
  const std::uint64_t seed = 1100 + 1000 * static_cast<std::uint64_t>(number);
  const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 4, seed);
  const auto garbage = paged::garbage_problems(spec);
  for (const Request& request : requests) {
    SCOPED_TRACE(fmt::format("{}\n{}", canonical_text(spec), to_string(request.plan)));
    const auto kernel = bank.get(spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    paged::check_cases(bank.device(), **kernel, spec, cases);
    if (spec.sink == nullptr) paged::check_empty(bank.device(), **kernel, spec);
    paged::check_garbage(bank.device(), **kernel, spec, garbage);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, GpuPaged,
                         testing::Combine(testing::Values("bf16", "fp16"),
                                          testing::Range(0, int{std::size(paged::kSpecs)})),
                         [](const auto& test) {
                           return fmt::format("{}_Spec{}", std::get<0>(test.param),
                                              std::get<1>(test.param));
                         });

class PagedDecode : public testing::TestWithParam<std::tuple<const char*, int>> {};

// Sequences of one, some and many pieces beside one another; the same to the bit at every launch.
TEST_P(PagedDecode, LongSequencesBesideShortOnes) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const auto& [lines, page_size] = GetParam();
  const std::vector<std::int32_t> queries = {1, 1, 3, 0, 1, 2, 17, 5, 1};
  const std::vector<std::int32_t> keys = {30000, 3, 500, 100, 0, 7001, 900, 4, 64};
  const ProblemShape shape{.batch = 9, .heads = 6, .kv_heads = 2, .q_len = 31, .kv_len = 30000};
  const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: bf16\nlayout: paged\n{}", lines));
  std::vector<Request> requests;
  for (const KernelPlan& plan : decode_plans(spec)) requests.push_back({spec, plan});
  bank.prepare(requests);
  HostProblem problem = paged::paged_problem(spec, shape, queries, keys, page_size,
                                             3 + static_cast<std::uint64_t>(page_size));
  std::vector<Row> rows = all_rows(problem);
  const paged::PagedCase c =
      paged::case_of(spec, Arithmetic::kMatrixUnit, std::move(problem),
                     paged::CacheOrder::kTokensFirst, std::move(rows), "long beside short");
  for (const Request& request : requests) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const auto run = [&] {
      return packed::run_packed(bank.device(), **kernel, spec, c.problem, c.rows, &c.cache);
    };
    const auto first = run();
    ASSERT_TRUE(first.ok()) << render(first.error());
    EXPECT_EQ(compare(*first, c.exact).wrong, "");
    const auto second = run();
    ASSERT_TRUE(second.ok()) << render(second.error());
    EXPECT_EQ(first->o, second->o) << "not the same to the bit";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, PagedDecode,
    testing::Combine(testing::Values("head_dim: 128\n", "head_dim: 64\nmask: causal\n",
                                     "head_dim: 64\nmask: causal and (q_pos - kv_idx < 700 or "
                                     "kv_idx < 4)\n"),
                     testing::Values(1, 16, 64)),
    [](const auto& test) { return fmt::format("Case{}", test.index); });

}  // namespace
}  // namespace attune::gpu_test
