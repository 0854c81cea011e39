// Plans that work out the runs of a tensor: both passes against the definition in fp64, where the
// tensor's numbers are runs and where they are not.
#include <fmt/format.h>

#include "tests/gpu/cheapest_plans.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShapes[] = {
    {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 1500, .kv_len = 1500},
    {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 300, .kv_len = 1100},
    {.batch = 3, .heads = 1, .kv_heads = 1, .q_len = 130, .kv_len = 70}};

// The cheapest plan of each family that works out runs.
std::vector<KernelPlan> plans_of(const AttentionSpec& spec, Pass pass) {
  return cheapest_plans(spec, pass, kShapes[0],
                        [](const KernelPlan& plan) { return plan.by_runs; });
}

// Numbers that rise; of which each has one run, or several; and as good as noise.
constexpr const char* kSpecs[] = {
    "head_dim: 128\nmask: causal and document(doc)\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=150)}}",
    "head_dim: 64\nmask: doc[q_idx] == doc[kv_idx]\nlayout: bhsd\n"
    "tensors: {doc: {dtype: int32, dims: [kv_len], sample: segments(mean=90)}}",
    "head_dim: 64\nmask: sliding_window(200) and doc[h, q_pos] == doc[h, kv_idx]\n"
    "score: score + 0.01 * (kv_idx - q_pos)\n"
    "tensors: {doc: {dtype: int32, dims: [heads, kv_len], sample: \"sorted(0, 9)\"}}",
    "head_dim: 80\nmask: causal and document(doc)\ndropout: 0.2\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: \"uniform(0, 3)\"}}",
    "head_dim: 128\nmask: q_idx >= kv_idx and doc[b, q_idx] == doc[b, kv_idx]\n"
    "deterministic: true\n"
    "tensors: {doc: {dtype: int32, dims: [batch, q_len], sample: segments(mean=400)}}",
    "head_dim: 64\nmask: causal and document(doc)\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: permutation}}"};

class Runs : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    if (bank.device().target() != Target::kSm90a) GTEST_SKIP() << "runs are of Hopper's kernels";
    forward_ = plans_of(spec_, Pass::kForward);
    backward_ = plans_of(spec_, Pass::kBackward);
    ASSERT_FALSE(forward_.empty());
    ASSERT_FALSE(backward_.empty());
    std::vector<Request> requests;
    for (const KernelPlan& plan : forward_) requests.push_back({spec_, plan});
    for (const KernelPlan& plan : backward_) requests.push_back({spec_, plan});
    bank.prepare(requests);
  }
  const AttentionSpec spec_ = spec_of(fmt::format("name: t\ndtype: bf16\n{}\n", GetParam()));
  std::vector<KernelPlan> forward_, backward_;
};

TEST_P(Runs, ForwardIsRight) {
  for (const ProblemShape& shape : kShapes)
    EXPECT_TRUE(judge(spec_, random_problem(spec_, shape, 7), forward_)) << to_string(shape);
}

TEST_P(Runs, BackwardIsTheDerivative) {
  for (const ProblemShape& shape : kShapes)
    EXPECT_TRUE(judge_backward(spec_, shape, 11, forward_.front(), backward_));
}

INSTANTIATE_TEST_SUITE_P(Specs, Runs, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

// Numbers that neither rise nor fall, of one run each, as where padding is -1; one that comes again
// at the end; and more runs than are compared.
class ToldRuns : public Runs {};

TEST_P(ToldRuns, AreThoseOfNumbersThatHaveOne) {
  const ProblemShape whole{.batch = 2, .heads = 1, .kv_heads = 1, .q_len = 2600, .kv_len = 2600};
  // All warps of the CTA that looks for runs have words.
  const ProblemShape longer{.batch = 2, .heads = 1, .kv_heads = 1, .q_len = 70, .kv_len = 9001};
  for (const int kind : {0, 1, 2, 3}) {
    HostProblem problem = random_problem(spec_, kind == 3 ? longer : whole, 5);
    auto& numbers = problem.tensors[0].values;
    const std::size_t length = numbers.size() / 2;
    for (std::size_t at = 0; at < length; ++at) {
      const auto run = static_cast<int>(kind == 2 ? at / 2 : at / 170);
      const int scattered = run * 7919 % 4001;
      numbers[at] = at > 2500 ? -1 : scattered;
      numbers[length + at] = kind == 1 && at > 2000 ? 0 : scattered;
    }
    EXPECT_TRUE(judge(spec_, problem, forward_)) << kind;
  }
}

TEST_P(ToldRuns, FaultsAreSeen) {
  const std::vector<planted::Fault> faults = {
      {"a run begins a position late",
       {{"= own == 0 ? kRunsBegin : own;", "= own == 0 ? kRunsBegin : own + 1;"}}},
      {"a word does not know where a run before it began",
       {{"begin = bits != 0 ? word * 32 + highest_bit(bits) : begin;", "begin = word * 32;"}}},
      {"a warp does not look before its words",
       {{"int begin = start_before(tables);", "int begin = first_word() * 32;"}}}};
  EXPECT_TRUE(are_found(faults, spec_, kShapes[0], forward_.front()));
  const planted::Fault ends = {
      "a run ends a position early",
      {{"word * 32 + first_bit(above) : end;", "word * 32 - 1 + first_bit(above) : end;"}}};
  EXPECT_TRUE(is_found(ends, spec_, kShapes[0], backward_.front()));
}

INSTANTIATE_TEST_SUITE_P(Specs, ToldRuns, testing::Values(kSpecs[0]));

class UntoldRuns : public Runs {};

TEST_P(UntoldRuns, FaultsAreSeen) {
  const std::vector<planted::Fault> faults = {
      {"runs are told where a number has two", {{"return tables.repeats == 0;", "return true;"}}},
      {"nobody looks whether they are told",
       {{fmt::format("return t0 == ({});", expr::kRunsBegin), "return t0 < 0;"}}}};
  EXPECT_TRUE(are_found(faults, spec_, kShapes[1], forward_.front()));
}

INSTANTIATE_TEST_SUITE_P(Specs, UntoldRuns, testing::Values(kSpecs[3]));

}  // namespace
}  // namespace attune::gpu_test
