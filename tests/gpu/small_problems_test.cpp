// One small problem of every kind of kernel: what an emulated GPU runs in minutes
// (tests/emulator). A real one runs it too.
#include <gtest/gtest.h>

#include <string>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/packed_backward_checks.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tests/verification/shared_prefix.hpp"

namespace attune::gpu_test {
namespace {

// Tiles that are not full on both sides, and two query heads a K/V head.
constexpr ProblemShape kShape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 461};
constexpr ProblemShape kPacked{.batch = 3, .heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 170};

struct Small {
  const char* name;
  const char* lines;
  const char* plan = "";  // a Hopper kernel's; none: what is cheapest of each family
};
void PrintTo(const Small& small, std::ostream* out) { *out << small.name; }

AttentionSpec spec_of(const Small& small) {
  return gpu_test::spec_of(std::string("name: t\n") + small.lines);
}

std::string name_of(const testing::TestParamInfo<Small>& info) { return info.param.name; }

class SmallProblems : public testing::TestWithParam<Small> {
 protected:
  void SetUp() override {
    if (!bank_.missing().empty()) GTEST_SKIP() << bank_.missing();
  }

  // The one that the problem names, or every family's.
  std::vector<KernelPlan> plans(const AttentionSpec& spec, Pass pass) {
    const DeviceFacts& facts = bank_.device().facts();
    if (*GetParam().plan != '\0') {
      if (facts.target != Target::kSm90a) return {};
      const auto plan = parse_plan(GetParam().plan);
      EXPECT_TRUE(plan.ok()) << render(plan.error());
      return plan.ok() ? std::vector{*plan} : std::vector<KernelPlan>();
    }
    return pass == Pass::kForward ? plans_of_families(spec, kShape, facts)
                                  : cheapest_of_both_passes(spec, kShape, facts).backward;
  }

  KernelBank& bank_ = KernelBank::instance();
};

using SmallForward = SmallProblems;

TEST_P(SmallForward, IsRight) {
  const AttentionSpec spec = spec_of(GetParam());
  const std::vector<KernelPlan> chosen = plans(spec, Pass::kForward);
  if (chosen.empty()) GTEST_SKIP() << "no Hopper GPU";
  EXPECT_TRUE(judge(spec, random_problem(spec, kShape, 5), chosen, 1));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SmallForward,
    testing::Values(
        Small{"OnePiece128", "dtype: bf16\nhead_dim: 128\n",
              "sm90a forward sm_90a w2 k128 s2 b1 qreg c1 persistent g1 frozen tma"},
        Small{"TwoPieces128", "dtype: bf16\nhead_dim: 128\nmask: causal\n",
              "sm90a forward sm_90a w2 k128 s3 b2 qreg c1 persistent g1 frozen tma"},
        Small{"RaisedPieces64", "dtype: fp16\nhead_dim: 64\nsoftmax_scale: 4.0\n",
              "sm90a forward sm_90a w3 k128 s4 b2 c1 persistent g1 frozen tma"},
        Small{"RaisedPiece256", "dtype: bf16\nhead_dim: 256\nsoftmax_scale: 10.0\n",
              "sm90a forward sm_90a w2 k64 s2 b1 c1 persistent g1 frozen tma"},
        Small{"Window", "dtype: fp16\nhead_dim: 80\nmask: causal and q_idx - kv_idx < 70\n"},
        Small{"Softcap", "dtype: bf16\nhead_dim: 64\nscore: 20 * tanh(score / 20)\n"},
        Small{"Dropout", "dtype: bf16\nhead_dim: 128\nmask: causal\ndropout: 0.2\n"},
        Small{"Strict", "dtype: bf16\nhead_dim: 64\naccuracy: strict\n"},
        Small{"BatchInvariant", "dtype: fp16\nhead_dim: 64\nmask: causal\nbatch_invariant: true\n"},
        Small{"Documents",
              "dtype: bf16\nhead_dim: 64\nmask: causal and document(doc)\n"
              "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=90)}}\n"},
        Small{"Runs",
              "dtype: bf16\nhead_dim: 64\nmask: causal and document(doc)\n"
              "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=90)}}\n",
              "sm90a forward sm_90a runs w2 k64 s4 b1 c1 longest g16 frozen tma"},
        Small{"RunsOfSeveral",
              "dtype: bf16\nhead_dim: 64\nmask: document(doc)\n"
              "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: \"uniform(0, 1)\"}}\n",
              "sm90a forward sm_90a runs w2 k64 s4 b1 c1 longest g16 frozen tma"},
        Small{"Fp32", "dtype: fp32\nhead_dim: 64\nmask: causal\n"}),
    name_of);

using SmallBackward = SmallProblems;

TEST_P(SmallBackward, IsRight) {
  const AttentionSpec spec = spec_of(GetParam());
  const std::vector<KernelPlan> chosen = plans(spec, Pass::kBackward);
  if (chosen.empty()) GTEST_SKIP() << "no Hopper GPU";
  const KernelPlan forward = cheapest_of_both_passes(spec, kShape, bank_.device().facts()).forward;
  EXPECT_TRUE(judge_backward(spec, kShape, 6, forward, chosen));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SmallBackward,
    testing::Values(
        Small{"Causal64", "dtype: bf16\nhead_dim: 64\nmask: causal\n"},
        Small{"Causal128", "dtype: bf16\nhead_dim: 128\nmask: causal\n"},
        Small{"Relaxed128", "dtype: bf16\nhead_dim: 128\naccuracy: relaxed\n"},
        Small{"Tall72", "dtype: bf16\nhead_dim: 72\n", "sm90a backward sm_90a w2 q80 s2"},
        Small{"Tall128", "dtype: fp16\nhead_dim: 128\n", "sm90a backward sm_90a w2 q80 s2"},
        Small{"InOrder128", "dtype: fp16\nhead_dim: 128\nmask: causal\ndeterministic: true\n"},
        Small{"InOrder64",
              "dtype: bf16\nhead_dim: 64\ndeterministic: true\nscore: 20 * tanh(score / 20)\n"},
        Small{"Wide", "dtype: bf16\nhead_dim: {qk: 192, v: 128}\n"},
        Small{
            "Learned",
            "dtype: bf16\nhead_dim: 64\nmask: causal\nscore: score + slope[h] * (kv_idx - q_idx)\n"
            "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n"},
        Small{"LearnedPairs",
              "dtype: fp16\nhead_dim: 64\nscore: score + bias[q_idx, kv_idx]\n"
              "tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"},
        Small{"Dropout", "dtype: bf16\nhead_dim: 64\nmask: causal\ndropout: 0.2\n"},
        Small{"Runs",
              "dtype: bf16\nhead_dim: 64\nmask: document(doc)\n"
              "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=90)}}\n",
              "sm90a backward sm_90a runs w2 q64 s2 counter"},
        Small{"Fp32", "dtype: fp32\nhead_dim: 64\n"}),
    name_of);

// Sequences of their own lengths, packed or in pages.
constexpr std::uint64_t kSeed = 1;
constexpr int kMost = 3, kLongest = 150;

paged::PagedCase paged_case(const AttentionSpec& spec) {
  if (!spec.shared_prefixes) {
    return paged::random_case(spec, Arithmetic::kMatrixUnit, kSeed, kLongest);
  }
  HostProblem problem =
      shared_prefix::shared_problem(spec, kPacked, {1, 2, 1}, {170, 121, 130}, 16, 100, kSeed);
  std::vector<Row> rows = all_rows(problem);
  return paged::case_of(spec, Arithmetic::kMatrixUnit, std::move(problem),
                        paged::CacheOrder::kTokensFirst, std::move(rows), "a common prefix");
}

class SmallSequences : public testing::TestWithParam<Small> {};

TEST_P(SmallSequences, AreRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(GetParam());
  const std::vector<KernelPlan> chosen = plans_of_families(spec, kShape, bank.device().facts());
  std::vector<Request> requests;
  for (const KernelPlan& plan : chosen) requests.push_back({spec, plan});
  bank.prepare(requests);
  for (const KernelPlan& plan : chosen) {
    SCOPED_TRACE(to_string(plan));
    const auto kernel = bank.get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    if (is_paged(spec)) {
      check_case(bank.device(), **kernel, spec, paged_case(spec));
    } else {
      check_case(bank.device(), **kernel, spec,
                 packed::random_case(spec, Arithmetic::kMatrixUnit, kSeed, kMost, kLongest));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SmallSequences,
    testing::Values(Small{"Packed", "dtype: bf16\nhead_dim: 64\nlayout: thd\nmask: causal\n"},
                    Small{"Paged", "dtype: bf16\nhead_dim: 128\nlayout: paged\nmask: causal\n"},
                    Small{"PagedFp8",
                          "dtype: bf16\nkv_dtype: fp8_e4m3\nhead_dim: 64\nlayout: paged\n"},
                    Small{"SharedPrefix",
                          "dtype: bf16\nhead_dim: 128\nlayout: paged\nshared_prefixes: true\n"
                          "mask: causal\n"},
                    Small{"Latent",
                          "dtype: bf16\nhead_dim: {qk: 576, v: 512}\nlayout: paged\n"
                          "v_in_k: true\nmask: causal\n"}),
    name_of);

class SmallSequencesBackward : public testing::TestWithParam<Small> {};

TEST_P(SmallSequencesBackward, IsRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(GetParam());
  const BackwardPlans plans = cheapest_of_both_passes(spec, kPacked, bank.device().facts());
  bank.prepare(requests_of(spec, plans));
  const auto forward = bank.get(spec, plans.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  std::vector<const LoadedKernel*> backward;
  for (const KernelPlan& plan : plans.backward) {
    const auto kernel = bank.get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << to_string(plan) << ": " << render(kernel.error());
    backward.push_back(kernel->get());
  }
  packed::check_random_gradients(
      {bank.device(), spec, **forward, backward, Arithmetic::kMatrixUnit}, 1, kSeed);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SmallSequencesBackward,
    testing::Values(
        Small{"Packed64", "dtype: bf16\nhead_dim: 64\nlayout: thd\nmask: causal\n"},
        Small{"PackedInOrder128",
              "dtype: bf16\nhead_dim: 128\nlayout: thd\nmask: causal\ndeterministic: true\n"}),
    name_of);

}  // namespace
}  // namespace attune::gpu_test
