// Batch-invariant specs: right, and a row's bits are the same whatever is beside it, by every plan.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu/judge.hpp"
#include "tests/verification/batches.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

// Of few queries: items of 16 and of 32 rows, the fewest stages and the most. And those of many:
// two warpgroups and three, items off the counter and one a CTA.
std::vector<KernelPlan> some_plans(const AttentionSpec& spec) {
  using Schedule = Sm90aPlan::Schedule;
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  std::vector<KernelPlan> plans = legal_plans(spec, Family::kDecode, facts);
  std::erase_if(plans, [](const KernelPlan& plan) {
    const int stages = std::get<DecodePlan>(plan.tile).stages;
    return stages != 2 && stages != 3;
  });
  for (const KernelPlan& plan : legal_plans(spec, Family::kSm90a, facts)) {
    const auto& tile = std::get<Sm90aPlan>(plan.tile);
    if ((tile.stages == 3 && tile.schedule == Schedule::kLongestFirst) ||
        (tile.stages == 2 && tile.schedule == Schedule::kSingle)) {
      plans.push_back(plan);
    }
  }
  return plans;
}

// One of each family: all of a spec's give the same bits.
std::vector<KernelPlan> few_plans(const AttentionSpec& spec) {
  std::vector<KernelPlan> plans = some_plans(spec);
  const auto more = std::ranges::unique(plans, {}, &KernelPlan::family);
  plans.erase(more.begin(), more.end());
  return plans;
}

struct Built {
  std::string plan;
  Family family;
  std::shared_ptr<LoadedKernel> kernel;
};

class GpuBatchInvariant : public testing::Test {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
  }
  static KernelBank& bank() { return KernelBank::instance(); }

  // Of the plans; none after a failure.
  static std::vector<Built> kernels_of(const AttentionSpec& spec,
                                       const std::vector<KernelPlan>& plans) {
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans) requests.push_back({spec, plan});
    bank().prepare(requests);
    std::vector<Built> kernels;
    for (const Request& request : requests) {
      auto kernel = bank().get(spec, request.plan);
      EXPECT_TRUE(kernel.ok()) << to_string(request.plan) << render(kernel.error());
      if (!kernel.ok()) return {};
      kernels.push_back({to_string(request.plan), request.plan.family(), *kernel});
    }
    EXPECT_FALSE(kernels.empty());
    return kernels;
  }
};

struct BatchCase {
  const char* dtype;
  const char* layout;
  const char* lines;
  bool has_parts = true;
};

void PrintTo(const BatchCase& of, std::ostream* out) {
  *out << of.dtype << ' ' << of.layout << '\n' << of.lines;
}

class GpuBatchInvariantBits : public GpuBatchInvariant,
                              public testing::WithParamInterface<BatchCase> {};

// 200 batches by a plan of each family and 20 by each other one, beside what the first one gives of
// sequences that are alone.
TEST_P(GpuBatchInvariantBits, DoNotKnowTheBatch) {
  const BatchCase& of = GetParam();
  const AttentionSpec spec = batches::spec_of(of.dtype, of.layout, of.lines);
  const std::vector<Built> kernels = kernels_of(spec, some_plans(spec));
  ASSERT_FALSE(kernels.empty());
  const LoadedKernel& first = *kernels.front().kernel;
  std::uint64_t seed = 1;
  std::set<Family> known;
  for (const auto& [plan, family, kernel] : kernels) {
    SCOPED_TRACE(plan);
    const int count = known.insert(family).second ? 200 : 20;
    EXPECT_EQ(batches::differs_in_batches(bank().device(), *kernel, spec, count, ++seed, &first),
              "");
    if (!of.has_parts) continue;
    EXPECT_EQ(batches::differs_in_parts(bank().device(), *kernel, spec, 5, &first), "");
  }
}

std::vector<BatchCase> batch_cases() {
  std::vector<BatchCase> cases;
  for (const char* dtype : {"bf16", "fp16"}) {
    for (const char* layout : {"thd", "paged"}) {
      for (const char* lines : batches::kSpecs) cases.push_back({dtype, layout, lines});
      cases.push_back({dtype, layout, batches::kTree, false});
    }
  }
  for (const char* lines : batches::kSpecs) cases.push_back({"fp16", "bhsd", lines});
  cases.push_back({"bf16", "paged", "head_dim: 128\nmask: causal\n"});
  cases.push_back({"bf16", "thd", "head_dim: {qk: 192, v: 128}\nmask: causal\n"});
  cases.push_back({"bf16", "bhsd", "head_dim: 128\n", false});
  cases.push_back({"bf16", "thd", "head_dim: 64\nmask: causal\naccuracy: strict\n"});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, GpuBatchInvariantBits, testing::ValuesIn(batch_cases()));

TEST_F(GpuBatchInvariant, PackedIsWhatTheOracleSays) {
  for (const char* lines : packed::kSpecs) {
    if (std::string_view(lines).find("dropout") != std::string_view::npos) continue;
    SCOPED_TRACE(lines);
    const AttentionSpec spec =
        spec_of(fmt::format("name: t\ndtype: bf16\nbatch_invariant: true\n{}", lines));
    for (const auto& [plan, family, kernel] : kernels_of(spec, few_plans(spec))) {
      SCOPED_TRACE(plan);
      packed::check_random(bank().device(), *kernel, spec, Arithmetic::kMatrixUnit, 4, 7);
      packed::check_lengths(bank().device(), *kernel, spec, Arithmetic::kMatrixUnit);
      if (spec.sink == nullptr) packed::check_empty(bank().device(), *kernel, spec);
      packed::check_garbage(bank().device(), *kernel, spec);
    }
  }
}

TEST_F(GpuBatchInvariant, PagedIsWhatTheOracleSays) {
  for (const char* lines : paged::kSpecs) {
    if (std::string_view(lines).find("dropout") != std::string_view::npos) continue;
    SCOPED_TRACE(lines);
    const AttentionSpec spec =
        spec_of(fmt::format("name: t\ndtype: fp16\nbatch_invariant: true\n{}", lines));
    const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 4, 8);
    const auto garbage = paged::garbage_problems(spec);
    for (const auto& [plan, family, kernel] : kernels_of(spec, few_plans(spec))) {
      SCOPED_TRACE(plan);
      paged::check_cases(bank().device(), *kernel, spec, cases);
      if (spec.sink == nullptr) paged::check_empty(bank().device(), *kernel, spec);
      paged::check_garbage(bank().device(), *kernel, spec, garbage);
    }
  }
}

// Pieces of every size, each a CTA's own and all of an item one CTA's.
TEST_F(GpuBatchInvariant, DenseIsWhatTheOracleSays) {
  const std::pair<const char*, ProblemShape> cases[] = {
      {"head_dim: 32\nmask: causal and (kv_idx // 1000) % 3 == 1",
       {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 2, .kv_len = 300000}},
      {"head_dim: 128\nmask: causal",
       {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 70, .kv_len = 9000}},
      {"head_dim: 64", {.batch = 260, .heads = 3, .kv_heads = 1, .q_len = 1, .kv_len = 5000}},
      {"head_dim: {qk: 192, v: 128}\nmask: causal and q_pos - kv_idx < 100 * (h + 1)",
       {.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 9, .kv_len = 3000}},
      {"head_dim: 64\nmask: causal",
       {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 9, .kv_len = 4}},
  };
  for (const auto& [lines, shape] : cases) {
    SCOPED_TRACE(lines);
    const AttentionSpec spec =
        spec_of(fmt::format("name: t\ndtype: bf16\nbatch_invariant: true\n{}\n", lines));
    const std::vector<KernelPlan> plans = few_plans(spec);
    ASSERT_FALSE(kernels_of(spec, plans).empty());
    EXPECT_TRUE(judge(spec, random_problem(spec, shape, 7), plans));
  }
}

}  // namespace
}  // namespace attune::gpu_test
