// What the tuner runs before it times a kernel of the CPU family finds every planted fault, and
// lets the kernel without one pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/cpu/cpu_test.hpp"
#include "tests/cpu/planted_faults.hpp"
#include "tests/verification/table.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune {
namespace {

using planted::EditingCompiler;

class Planted : public testing_support::CpuTest,
                public testing::WithParamInterface<planted::Problem> {};

TEST_P(Planted, FaultsAreFound) {
  const planted::Problem& problem = GetParam();
  const auto spec = parse_spec(
      fmt::format("attune: 1\nname: t\ndtype: bf16\nhead_dim: 32\n{}", problem.yaml), "t.yaml");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const planted::Site site = planted::site_of(problem, *spec);
  std::vector<EditingCompiler> editing;
  for (planted::Fault& fault : planted::cpu_faults(site)) editing.emplace_back(*compiler_, fault);
  std::vector<Compiler*> compilers = {compiler_.get()};
  for (EditingCompiler& compiler : editing) compilers.push_back(&compiler);
  // Where documents begin decides what there is to see.
  const std::uint64_t seed = problem.mask == "document" ? 1 : std::random_device()();
  LocalExecutor executor(*spec, problem.shape, *device_, compilers, nullptr, seed);
  // The cheapest of which even 512 keys are several tiles.
  const auto plans = plans_by_cost(*spec, problem.shape, device_->facts());
  ASSERT_TRUE(plans.ok()) << render(plans.error());
  const auto plan = std::ranges::find_if(*plans, [](const KernelPlan& candidate) {
    return std::get<CpuPlan>(candidate.tile).tile_kv <= 128;
  });
  ASSERT_NE(plan, plans->end());
  for (int i = 0; i < static_cast<int>(compilers.size()); ++i) {
    const Candidate candidate(*plan, i);
    const auto built = executor.compile(candidate);
    ASSERT_TRUE(built.ok()) << render(built.error());
    const Status status = executor.verify(candidate);
    executor.release(candidate);
    if (i == 0) {
      EXPECT_TRUE(status.ok()) << "without a fault: " << render(status.error());
      continue;
    }
    const std::string& fault = editing[static_cast<std::size_t>(i - 1)].name();
    planted::note_result(fault, problem.mask, problem.length, !status.ok());
    ASSERT_FALSE(status.ok()) << fault;
    // Where documents begin and end the next numbers may hide it.
    if (problem.mask == "document") continue;
    EXPECT_EQ(rejection_reason(status.error()), "miscompute") << fault;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Planted, testing::ValuesIn(planted::problems(2, 65536)),
                         [](const auto& test) {
                           return fmt::format("{}_{}", test.param.mask, test.param.length);
                         });

const auto* const kTable =
    testing::AddGlobalTestEnvironment(new planted::TableWriter("docs/verification.md", "cpu"));

}  // namespace
}  // namespace attune
