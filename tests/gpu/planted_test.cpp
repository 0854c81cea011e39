// What the tuner runs before it times a kernel finds every planted fault in the GPU families, and
// lets the kernels without one pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "runtime/support/parallel.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planted_faults.hpp"
#include "tests/verification/table.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune::gpu_test {
namespace {

using planted::EditingCompiler;

// The cheapest plan of the family whose maximum runs; the given one where there is none.
KernelPlan running_plan(const AttentionSpec& spec, const ProblemShape& shape,
                        const DeviceFacts& facts, const KernelPlan& given) {
  const auto plans = plans_by_cost(spec, shape, facts);
  if (!plans.ok()) return given;
  for (const KernelPlan& plan : *plans) {
    if (plan.family() == given.family() && !is_frozen(plan)) return plan;
  }
  return given;
}

struct Planting {
  std::string fault;  // empty: none
  Candidate candidate;
};

class Planted : public testing::TestWithParam<planted::Problem> {};

TEST_P(Planted, FaultsAreFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const planted::Problem& problem = GetParam();
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 128\n" + problem.yaml);
  const planted::Site site = planted::site_of(problem, spec);
  const DeviceFacts& facts = bank.device().facts();

  std::deque<EditingCompiler> editing;
  std::vector<Compiler*> compilers = {&bank.compiler()};
  std::vector<Planting> plantings;
  for (const KernelPlan& plan : plans_of_families(spec, problem.shape, facts)) {
    plantings.push_back({"", Candidate(plan)});
    for (const planted::GpuFault& fault : planted::gpu_faults(plan.family(), site)) {
      compilers.push_back(&editing.emplace_back(bank.compiler(), fault.fault));
      plantings.push_back(
          {fault.fault.name,
           Candidate(
               fault.needs_running_maximum ? running_plan(spec, problem.shape, facts, plan) : plan,
               static_cast<int>(compilers.size()) - 1)});
    }
  }
  LocalExecutor executor(spec, problem.shape, bank.device(), compilers, nullptr,
                         std::random_device()());
  std::vector<Status> built(plantings.size(), ok_status());
  parallel_for(static_cast<std::int64_t>(plantings.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    auto facts_of = executor.compile(plantings[at].candidate);
    if (!facts_of.ok()) built[at] = facts_of.error();
  });
  for (std::size_t i = 0; i < plantings.size(); ++i) {
    const auto& [fault, candidate] = plantings[i];
    SCOPED_TRACE(to_string(candidate.plan) + " with " + fault);
    ASSERT_TRUE(built[i].ok()) << render(built[i].error());
    const Status status = executor.verify(candidate);
    executor.release(candidate);
    if (fault.empty()) {
      EXPECT_TRUE(status.ok()) << render(status.error());
      continue;
    }
    planted::note_result(fmt::format("{}: {}", to_string(candidate.plan.family()), fault),
                         problem.mask, problem.length, !status.ok());
    EXPECT_FALSE(status.ok());
    // Where documents begin and end the next numbers may hide it.
    if (!status.ok() && problem.mask != "document") {
      EXPECT_EQ(rejection_reason(status.error()), "miscompute") << render(status.error());
    }
  }
}

// Of 32768 keys one too many weighs several times what rounding P to bf16 may do to a row of O; of
// 131072 keys, where nine in ten such faults were found, it hardly does.
INSTANTIATE_TEST_SUITE_P(All, Planted, testing::ValuesIn(planted::problems(4, 32768)),
                         [](const auto& test) {
                           return test.param.mask + "_" + test.param.length;
                         });

const auto* const kTable =
    testing::AddGlobalTestEnvironment(new planted::TableWriter("docs/verification.md", "gpu"));

}  // namespace
}  // namespace attune::gpu_test
