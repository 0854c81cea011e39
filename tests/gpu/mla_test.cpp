// Keys whose first columns are the values: the mla family, and whatever else serves them.
#include "tests/verification/mla.hpp"

#include <fmt/format.h>

#include <span>
#include <tuple>

#include "runtime/support/parallel.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tests/verification/shared_prefix.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

// Plans that differ in how warps share out rows, keys and columns, and in what is merged.
constexpr const char* kPlans[] = {"q16 k32 s3 w4 p1", "q16 k32 s4 w4 p12", "q16 k64 s3 w8 p1",
                                  "q16 k64 s3 w8 p3", "q32 k32 s4 w8 p1",  "q32 k64 s3 w8 p2",
                                  "q64 k64 s2 w8 p1", "q64 k64 s2 w8 p5"};

// Of sequences, whose problems take longer to make than to run.
constexpr const char* kSequencePlans[] = {"q16 k32 s4 w4 p12",
                                          "q16 k64 s3 w8 p1",
                                          "q32 k64 s3 w8 p2",
                                          "q64 k64 s2 w8 p5",
                                          "q16 k64 s3 w8 p16 stretches",
                                          "q64 k64 s2 w8 p16 stretches",
                                          "q64 k64 s2 w8 p2 stretches"};

AttentionSpec shared_spec(const char* dtype, std::string_view lines) {
  return spec_of(fmt::format("name: t\ndtype: {}\nv_in_k: true\n{}\n", dtype, lines));
}

std::vector<KernelPlan> plans_of(const AttentionSpec& spec,
                                 std::span<const char* const> texts = kPlans) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  std::vector<KernelPlan> plans;
  for (const char* text : texts) {
    const auto plan = parse_plan(fmt::format("mla forward {} {}", to_string(facts.target), text));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    if (plan.ok() && check_plan(spec, *plan, facts).ok()) plans.push_back(*plan);
  }
  return plans;
}

std::vector<Request> requests_of(const AttentionSpec& spec) {
  std::vector<Request> requests;
  for (const KernelPlan& plan : plans_of(spec, kSequencePlans)) requests.push_back({spec, plan});
  return requests;
}

class Mla : public testing::TestWithParam<mla::Case> {};

TEST_P(Mla, IsRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const mla::Case& c = GetParam();
  for (const char* dtype : {"bf16", "fp16"}) {
    const AttentionSpec spec = shared_spec(dtype, c.spec);
    std::vector<KernelPlan> plans = plans_of(spec);
    ASSERT_GE(plans.size(), 1u);
    // The other families read K and V each for itself.
    for (const KernelPlan& plan : plans_of_families(spec, c.shape, bank.device().facts())) {
      plans.push_back(plan);
    }
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans) requests.push_back({spec, plan});
    bank.prepare(requests);
    EXPECT_TRUE(judge(spec, random_problem(spec, c.shape, 7), plans)) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Mla, testing::ValuesIn(mla::kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// Every length around tiles and units, up to 5000 keys.
TEST(MlaLengths, AreRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = shared_spec("bf16", mla::kSequenceSpecs[1]);
  bank.prepare(requests_of(spec));
  for (const int keys : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 2047, 4096, 5000}) {
    const ProblemShape shape{.batch = 1, .heads = 16, .kv_heads = 1, .q_len = 1, .kv_len = keys};
    EXPECT_TRUE(judge(spec, random_problem(spec, shape, 9), plans_of(spec, kSequencePlans)))
        << keys;
  }
}

// Of a spec and a plan each, as all of them in one test take minutes.
class MlaPacked : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(MlaPacked, EveryKindOfBatch) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const auto [lines, text] = GetParam();
  const AttentionSpec spec = shared_spec("bf16", fmt::format("layout: thd\n{}", lines));
  for (const KernelPlan& plan : plans_of(spec, {&text, 1})) {
    SCOPED_TRACE(fmt::format("{}{}", lines, to_string(plan)));
    const auto kernel = bank.get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    packed::check_random(bank.device(), **kernel, spec, Arithmetic::kMatrixUnit, 2, 50);
    packed::check_lengths(bank.device(), **kernel, spec, Arithmetic::kMatrixUnit);
    packed::check_empty(bank.device(), **kernel, spec);
    packed::check_garbage(bank.device(), **kernel, spec);
  }
}

INSTANTIATE_TEST_SUITE_P(Sequences, MlaPacked,
                         testing::Combine(testing::ValuesIn(mla::kSequenceSpecs),
                                          testing::ValuesIn(kSequencePlans)));

// Sequences that share pages are served as any others. Rows that lie nowhere are not those of page
// 0, which no sequence may have.
TEST(MlaPaged, SequencesThatShareAreRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = shared_spec(
      "bf16", fmt::format("layout: paged\nshared_prefixes: true\n{}", mla::kSequenceSpecs[1]));
  std::vector<Request> requests = requests_of(spec);
  ASSERT_FALSE(requests.empty());
  const ProblemShape shape{.batch = 8, .heads = 16, .kv_heads = 1, .q_len = 8, .kv_len = 2000};
  for (const KernelPlan& plan : plans_of_families(spec, shape, bank.device().facts()))
    requests.push_back({spec, plan});
  bank.prepare(requests);
  std::vector<paged::PagedCase> cases;
  for (std::uint64_t seed = 1; seed < 9; ++seed) {
    std::mt19937_64 numbers(seed);
    HostProblem problem = shared_prefix::random_shared(spec, numbers);
    std::vector<Row> rows = sample_rows(problem, 200, seed);
    cases.push_back(paged::case_of(spec, Arithmetic::kMatrixUnit, std::move(problem),
                                   paged::CacheOrder::kTokensFirst, std::move(rows), "shared"));
  }
  for (const Request& request : requests) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    for (const paged::PagedCase& c : cases) {
      const auto out = packed::run_packed(bank.device(), **kernel, spec, c.problem, c.rows);
      ASSERT_TRUE(out.ok()) << render(out.error());
      EXPECT_EQ(compare(*out, c.exact).wrong, "");
    }
  }
}

TEST(MlaPaged, EveryKernelOnEveryKindOfBatch) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  for (const char* lines : mla::kSequenceSpecs) {
    const AttentionSpec spec = shared_spec("bf16", fmt::format("layout: paged\n{}", lines));
    bank.prepare(requests_of(spec));
    const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 2, 300);
    const auto garbage = paged::garbage_problems(spec);
    for (const auto& [of, plan] : requests_of(spec)) {
      SCOPED_TRACE(fmt::format("{}{}", lines, to_string(plan)));
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      paged::check_cases(bank.device(), **kernel, spec, cases);
      paged::check_empty(bank.device(), **kernel, spec);
      paged::check_garbage(bank.device(), **kernel, spec, garbage);
      if (HasFatalFailure()) return;
    }
  }
}

// One query, or two, of each of many heads, over sequences of these lengths.
HostProblem stretched_problem(const AttentionSpec& spec, std::span<const int> lengths,
                              int queries) {
  std::vector<std::int32_t> cu_q = {0}, cu_kv = {0};
  for (const int length : lengths) {
    cu_q.push_back(cu_q.back() + queries);
    cu_kv.push_back(cu_kv.back() + length);
  }
  const ProblemShape shape{.batch = static_cast<std::int64_t>(cu_q.size()) - 1,
                           .heads = 128,
                           .kv_heads = 1,
                           .q_len = cu_q.back(),
                           .kv_len = cu_kv.back()};
  return packed::packed_problem(spec, shape, {.cu_q = cu_q, .cu_kv = cu_kv}, 11);
}

KernelPlan stretching_plan(const char* text) {
  const auto plan = parse_plan(fmt::format("mla forward sm_90a {} stretches", text));
  EXPECT_TRUE(plan.ok()) << render(plan.error());
  return *plan;
}

constexpr const char* kStretchingPlans[] = {"q64 k64 s2 w8 p2", "q64 k64 s2 w8 p64",
                                            "q16 k64 s3 w8 p128"};

void check_stretches(std::span<const int> lengths) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  std::vector<AttentionSpec> specs;
  std::vector<Request> requests;
  for (const char* lines : mla::kSequenceSpecs) {
    specs.push_back(shared_spec("bf16", fmt::format("layout: thd\n{}", lines)));
    for (const char* text : kStretchingPlans)
      requests.push_back({specs.back(), stretching_plan(text)});
  }
  bank.prepare(requests);
  for (const AttentionSpec& spec : specs) {
    for (const int queries : {1, 2}) {
      const HostProblem problem = stretched_problem(spec, lengths, queries);
      const std::vector<Row> rows = sample_rows(problem, 200, 3);
      const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
      for (const char* text : kStretchingPlans) {
        SCOPED_TRACE(fmt::format("{}{} queries, {}", canonical_text(spec), queries, text));
        const auto kernel = bank.get(spec, stretching_plan(text));
        ASSERT_TRUE(kernel.ok()) << render(kernel.error());
        const auto output = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
        ASSERT_TRUE(output.ok()) << render(output.error());
        EXPECT_EQ(compare(*output, exact).wrong, "");
      }
    }
  }
}

TEST(MlaStretches, ItemsThatAreCutAnywhere) { check_stretches(mla::kStretchedLengths); }
TEST(MlaStretches, ItemsInEqualParts) { check_stretches(mla::kNearlyEqualLengths); }

// Each of them, and none.
void check_faults(std::span<const int> lengths, std::vector<planted::Fault> faults) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  const AttentionSpec spec =
      shared_spec("bf16", fmt::format("layout: thd\n{}", mla::kSequenceSpecs[0]));
  const KernelPlan plan = stretching_plan("q64 k64 s2 w8 p16");
  const HostProblem problem = stretched_problem(spec, lengths, 1);
  const std::vector<Row> rows = all_rows(problem);
  const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
  faults.push_back({"none", {}});
  std::vector<Result<BuiltKernel>> built(faults.size(), Error{});
  parallel_for(static_cast<std::int64_t>(faults.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    planted::EditingCompiler faulty(bank.compiler(), faults[at]);
    built[at] = build(spec, plan, faulty, nullptr);
  });
  for (std::size_t i = 0; i < faults.size(); ++i) {
    SCOPED_TRACE(faults[i].name);
    ASSERT_TRUE(built[i].ok()) << render(built[i].error());
    const auto kernel = bank.device().load(spec, plan, built[i]->code.image);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    // Rows that nobody has written are an error.
    const auto output = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
    EXPECT_EQ(output.ok() && compare(*output, exact).wrong.empty(), faults[i].edits.empty());
  }
}

TEST(MlaStretches, FaultsAreSeen) { check_faults(mla::kStretchedLengths, mla::stretch_faults()); }
TEST(MlaStretches, FaultsOfPartsAreSeen) {
  check_faults(mla::kNearlyEqualLengths, mla::part_faults());
}

// The judge sees wrong kernels.
TEST(MlaPlanted, FaultsAreSeen) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = shared_spec("bf16", mla::kFaultySpec);
  const HostProblem problem = random_problem(spec, mla::kFaultyShape, 5);
  const std::vector<Row> rows = all_rows(problem.shape);
  const ForwardOracle exact = oracle_forward(spec, problem, rows);
  auto on_device = DeviceProblem::upload(bank.device(), spec, problem);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  for (auto& [text, faults] : mla::faulty_plans()) {
    const DeviceFacts& facts = bank.device().facts();
    const auto plan = parse_plan(fmt::format("mla forward {} {}", to_string(facts.target), text));
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    if (!check_plan(spec, *plan, facts).ok()) continue;
    faults.push_back({"none", {}});
    std::vector<Result<BuiltKernel>> built(faults.size(), Error{});
    parallel_for(static_cast<std::int64_t>(faults.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      planted::EditingCompiler faulty(bank.compiler(), faults[at]);
      built[at] = build(spec, *plan, faulty, nullptr);
    });
    for (std::size_t i = 0; i < faults.size(); ++i) {
      const planted::Fault& fault = faults[i];
      SCOPED_TRACE(fault.name);
      ASSERT_TRUE(built[i].ok()) << render(built[i].error());
      const auto kernel = bank.device().load(spec, *plan, built[i]->code.image);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      ASSERT_TRUE((*on_device)->poison().ok());
      ASSERT_TRUE((*on_device)->prepare(**kernel).ok());
      ASSERT_TRUE((*on_device)->launch(**kernel, nullptr).ok());
      ASSERT_TRUE(bank.device().synchronize().ok());
      const auto output = (*on_device)->download(rows);
      ASSERT_TRUE(output.ok()) << render(output.error());
      EXPECT_EQ(compare(*output, exact).wrong.empty(), fault.edits.empty());
    }
  }
}

}  // namespace
}  // namespace attune::gpu_test
