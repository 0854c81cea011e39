// Walks of few key tiles of packed sequences, cut into parts whose dK and dV are added up: right
// and the same to the bit, whatever sequences there are, and what goes wrong with a part is found.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "runtime/support/parallel.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tests/verification/packed_backward_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kTypical{.batch = 2, .heads = 8, .kv_heads = 1, .q_len = 400, .kv_len = 400};

constexpr const char* kSpecs[] = {
    "dtype: bf16\nhead_dim: 64\nmask: causal",
    "dtype: fp16\nhead_dim: 80",
    "dtype: bf16\nhead_dim: 128\nmask: abs(q_pos - kv_idx) <= 100 and h % 3 != 1\ndropout: 0.2",
    "dtype: bf16\nhead_dim: 72\nscore: 5 * tanh(score / 5)",
    "dtype: fp16\nhead_dim: {qk: 40, v: 64}\nmask: causal\ntensors:\n  sinks: {dtype: float32, "
    "dims: [heads], grad: true}\nsink: sinks[h]",
    "dtype: bf16\nhead_dim: 192\nmask: causal",
    "dtype: bf16\nhead_dim: {qk: 192, v: 128}\nmask: causal",
    "dtype: fp16\nhead_dim: 256\ndropout: 0.1"};

// A long sequence beside short ones, one without queries, one without keys, one shorter than what
// its offsets leave; a group whose parts end within heads; none whose walk is long enough to cut;
// and key tiles enough, so that there is a single part.
struct Batch {
  ProblemShape shape;
  HostSequences sequences;
};
std::vector<Batch> batches() {
  return {{{.batch = 6, .heads = 7, .kv_heads = 1, .q_len = 820, .kv_len = 760},
           {.cu_q = {0, 500, 520, 520, 650, 700, 820},
            .cu_kv = {0, 400, 420, 500, 500, 629, 760},
            .used_kv = {400, 20, 80, 0, 128, 65}}},
          {{.batch = 1, .heads = 64, .kv_heads = 8, .q_len = 289, .kv_len = 289},
           {.cu_q = {0, 289}, .cu_kv = {0, 289}}},
          {{.batch = 2, .heads = 16, .kv_heads = 2, .q_len = 300, .kv_len = 700},
           {.cu_q = {0, 1, 300}, .cu_kv = {0, 440, 700}}},
          {{.batch = 3, .heads = 2, .kv_heads = 2, .q_len = 90, .kv_len = 70},
           {.cu_q = {0, 40, 40, 90}, .cu_kv = {0, 3, 50, 70}}},
          {{.batch = 2, .heads = 24, .kv_heads = 24, .q_len = 600, .kv_len = 600},
           {.cu_q = {0, 470, 600}, .cu_kv = {0, 470, 600}}}};
}

bool cuts_walks(const KernelPlan& plan) {
  if (const auto* tile = std::get_if<Sm90aOrderedPlan>(&plan.tile)) return tile->cuts_walks;
  const auto* tile = std::get_if<Sm90aBackwardPlan>(&plan.tile);
  return tile != nullptr && tile->cuts_walks;
}

struct Plans {
  KernelPlan forward;
  std::vector<KernelPlan> backward;  // of each family the cheapest that cuts walks
};
Plans plans_of(const AttentionSpec& spec) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  Plans plans{plans_of_families(spec, kTypical, facts).front(), {}};
  const auto all = plans_by_cost(spec, kTypical, facts, Pass::kBackward);
  if (!all.ok()) return plans;
  for (const KernelPlan& plan : *all) {
    const bool is_known = std::ranges::find(plans.backward, plan.family(), &KernelPlan::family) !=
                          plans.backward.end();
    if (cuts_walks(plan) && !is_known) plans.backward.push_back(plan);
  }
  return plans;
}

AttentionSpec listed_spec(const char* lines) {
  return spec_of(fmt::format("name: t\nlayout: thd\n{}\n", lines));
}

class ListedParts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!bank_.missing().empty()) GTEST_SKIP() << bank_.missing();
    spec_ = listed_spec(GetParam());
    const Plans plans = plans_of(spec_);
    if (plans.backward.empty()) GTEST_SKIP() << "no plan cuts walks";
    std::vector<Request> requests = {{spec_, plans.forward}};
    for (const KernelPlan& plan : plans.backward) requests.push_back({spec_, plan});
    bank_.prepare(requests);
    const auto forward = bank_.get(spec_, plans.forward);
    ASSERT_TRUE(forward.ok()) << render(forward.error());
    forward_ = *forward;
    for (const KernelPlan& plan : plans.backward) {
      const auto kernel = bank_.get(spec_, plan);
      ASSERT_TRUE(kernel.ok()) << to_string(plan) << ": " << render(kernel.error());
      owned_.push_back(*kernel);
      backward_.push_back(owned_.back().get());
    }
  }
  packed::BackwardKernels kernels() const {
    return {bank_.device(), spec_, *forward_, backward_, Arithmetic::kMatrixUnit};
  }

  KernelBank& bank_ = KernelBank::instance();
  AttentionSpec spec_;
  std::shared_ptr<LoadedKernel> forward_;
  std::vector<std::shared_ptr<LoadedKernel>> owned_;
  std::vector<const LoadedKernel*> backward_;
};

TEST_P(ListedParts, AddUpToTheDerivative) {
  std::uint64_t seed = std::hash<std::string>{}(GetParam());
  for (const Batch& batch : batches()) {
    SCOPED_TRACE(to_string(batch.shape));
    HostProblem problem = packed::packed_problem(spec_, batch.shape, batch.sequences, ++seed);
    packed::spoil_foreign(spec_, problem, -1);
    packed::check_gradients(kernels(), problem, seed);
  }
  packed::check_random_gradients(kernels(), 3, seed);
  packed::check_lengths_of_gradients(kernels());
  packed::check_garbage_of_gradients(kernels());
}

TEST_P(ListedParts, AddUpToTheSameBits) {
  constexpr int kLaunches = 12;
  for (const Batch& batch : batches()) {
    SCOPED_TRACE(to_string(batch.shape));
    const HostProblem problem = packed::packed_problem(spec_, batch.shape, batch.sequences, 3);
    const auto made = BackwardProblem::make(bank_.device(), spec_, problem, *forward_, 4);
    ASSERT_TRUE(made.ok()) << render(made.error());
    // NaN where a row is no sequence's, in both.
    const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
    for (const LoadedKernel* backward : backward_) {
      const auto first = (*made)->run(*backward);
      ASSERT_TRUE(first.ok()) << render(first.error());
      for (int i = 0; i < kLaunches; ++i) {
        const auto again = (*made)->run(*backward);
        ASSERT_TRUE(again.ok()) << render(again.error());
        ASSERT_TRUE(std::ranges::equal(first->dk, again->dk, same)) << i;
        ASSERT_TRUE(std::ranges::equal(first->dv, again->dv, same)) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, ListedParts, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

class ListedPartFaults : public ListedParts {};

TEST_P(ListedPartFaults, AreFound) {
  const std::string sum = "sum[n] += numbers[i][n / 4][n % 4];";
  const std::string first =
      "head == first_head ? all.first + share(count, first_tile) : all.first,";
  const auto moved = [](const char* by) {
    return fmt::format(
        "head == first_head ? all.first + share(count, first_tile) {} (part == 1) : all.first,",
        by);
  };
  const std::string own = "const int parts = cut_walks(p, own.q_len).parts;";
  const std::string rows = "const int rows = min_i32(kListedRowsOfSum, own.kv_len - first);";
  const std::string at = "first_listed_tile(own, b) * kPartKeys + key,";
  const planted::Fault faults[] = {
      {"a part left out", {{sum, "if (part + i != 1) " + sum}}},
      {"a part added twice", {{sum, "{ " + sum + " if (part + i == 1) " + sum + " }"}}},
      {"a tile between two parts left out", {{first, moved("+")}}},
      {"a tile between two parts taken twice", {{first, moved("-")}}},
      {"parts as if all queries were one sequence's",
       {{own, "const int parts = own.q_len < 100 ? 1 : cut_walks(p).parts;"}}},
      {"a sequence's last row left out",
       {{rows, "const int rows = min_i32(kListedRowsOfSum, own.kv_len - 1 - first);"}}},
      {"rows of the sequence before",
       {{at, "(first_listed_tile(own, b) - (b == 4)) * kPartKeys + key,"}}}};
  const Batch batch = batches().front();
  HostProblem problem = packed::packed_problem(spec_, batch.shape, batch.sequences, 3);
  packed::spoil_foreign(spec_, problem, -1);
  const auto made = BackwardProblem::make(bank_.device(), spec_, problem, *forward_, 7);
  ASSERT_TRUE(made.ok()) << render(made.error());
  const BackwardOracle oracle = oracle_backward(spec_, problem, (*made)->output_gradients());
  const auto wrong = [&](const LoadedKernel& backward) -> std::string {
    const auto gradients = (*made)->run(backward);
    EXPECT_TRUE(gradients.ok()) << render(gradients.error());
    if (!gradients.ok()) return "";
    return wrong_gradient(*gradients, oracle, whole_sample(problem), spec_, problem);
  };
  for (const KernelPlan& plan : plans_of(spec_).backward) {
    SCOPED_TRACE(to_string(plan));
    const auto right = bank_.get(spec_, plan);
    ASSERT_TRUE(right.ok()) << render(right.error());
    EXPECT_EQ(wrong(**right), "") << "without a fault";
    std::vector<Result<BuiltKernel>> built(std::size(faults), Error{});
    parallel_for(static_cast<std::int64_t>(std::size(faults)), [&](std::int64_t i) {
      const auto which = static_cast<std::size_t>(i);
      planted::EditingCompiler editing(bank_.compiler(), faults[which]);
      built[which] = build(spec_, plan, editing, nullptr);
    });
    for (std::size_t i = 0; i < std::size(faults); ++i) {
      SCOPED_TRACE(faults[i].name);
      ASSERT_TRUE(built[i].ok()) << render(built[i].error());
      const auto kernel = bank_.device().load(spec_, plan, built[i]->code.image);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      EXPECT_NE(wrong(**kernel), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, ListedPartFaults, testing::Values(kSpecs[1], kSpecs[0], kSpecs[5]),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
