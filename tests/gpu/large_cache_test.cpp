// Caches of more than 2^31 bytes: rows lie where 64 bits say.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "generator/plan/any_pages.hpp"
#include "runtime/reference/element_bits.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged.hpp"

namespace attune::gpu_test {
namespace {

constexpr std::int64_t kPageSize = 16;
constexpr std::size_t kBytes = (std::size_t{1} << 31) + (std::size_t{1} << 28);

// Pages of one K/V head so far apart that they fill it; V behind K.
packed::Cache spread(const AttentionSpec& spec, const HostProblem& problem) {
  const std::int64_t apart =
      static_cast<std::int64_t>(kBytes) / (2 * problem.pages.count) / 64 * 64;  // elements
  packed::Cache cache;
  cache.k.resize(kBytes);
  const auto place = [&](const std::vector<double>& values, std::int64_t dim, std::int64_t first) {
    const auto bytes = encode(spec.dtype, values);
    const auto of_page = static_cast<std::size_t>(2 * kPageSize * dim);
    for (std::int64_t page = 0; page < problem.pages.count; ++page) {
      std::memcpy(&cache.k[static_cast<std::size_t>(2 * (page * apart + first))],
                  &bytes[static_cast<std::size_t>(page) * of_page], of_page);
    }
    return att::Strides{apart, dim, dim};
  };
  cache.k_stride = place(problem.k, spec.head_dim_qk, 0);
  const std::int64_t behind = kPageSize * spec.head_dim_qk;
  cache.v_stride = cache.k_stride;
  if (spec.v_in_k) return cache;
  cache.v_stride = place(problem.v, spec.head_dim_v, behind);
  cache.v_at = static_cast<std::size_t>(2 * behind);
  return cache;
}

class LargeCache : public testing::TestWithParam<const char*> {};

TEST_P(LargeCache, IsRead) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const DeviceFacts& facts = bank.device().facts();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: paged\n{}", GetParam()));
  const ProblemShape shape{.batch = 3, .heads = 16, .kv_heads = 1, .q_len = 5, .kv_len = 333};
  std::vector<Request> requests;
  for (const KernelPlan& plan : plans_of_families(spec, shape, facts)) {
    requests.push_back({spec, plan});
    if (const auto by_rows = plan_for_any_pages(spec, plan, facts))
      requests.push_back({spec, *by_rows});
  }
  if (spec.v_in_k) {
    for (const char* text : {"q64 k64 s2 w8 p2 stretches", "q16 k32 s4 w4 p12"}) {
      const auto plan = parse_plan(fmt::format("mla forward {} {}", to_string(facts.target), text));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      if (check_plan(spec, *plan, facts).ok()) requests.push_back({spec, *plan});
    }
  }
  bank.prepare(requests);
  const HostProblem problem =
      paged::paged_problem(spec, shape, {1, 1, 3}, {150, 16, 333}, kPageSize, 5);
  const packed::Cache cache = spread(spec, problem);
  const std::vector<Row> rows = all_rows(problem);
  const ForwardOracle exact = oracle_forward(spec, problem, rows);
  for (const Request& request : requests) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const auto out = packed::run_packed(bank.device(), **kernel, spec, problem, rows, &cache);
    ASSERT_TRUE(out.ok()) << render(out.error());
    EXPECT_EQ(compare(*out, exact).wrong, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, LargeCache,
                         testing::Values("head_dim: 128\nmask: causal\n",
                                         "head_dim: {qk: 576, v: 512}\nv_in_k: true\n"),
                         [](const auto& test) { return fmt::format("Case{}", test.index); });

}  // namespace
}  // namespace attune::gpu_test
