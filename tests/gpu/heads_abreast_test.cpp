// Hopper's forward plans whose warpgroups have a query head each, or several, of one K/V head:
// groups of heads that the warpgroups divide and others, dense, packed and on keys in pages; and
// faults planted in who has which head.
#include <fmt/format.h>

#include <span>
#include <string>

#include "generator/plan/any_pages.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kTiles[] = {"w2 k128 s3 b2 qreg c1 longest g16 frozen tma heads",
                                  "w3 k64 s3 b1 c1 longest g16 frozen tma heads",
                                  "w2 k64 s3 b1 c1 longest g16 frozen tma heads",
                                  "w2 k128 s3 b2 qreg c1 longest g16 frozen tma heads4",
                                  "w2 k64 s3 b1 c1 longest g16 frozen tma heads8",
                                  "w1 k64 s4 b1 qreg c1 longest g16 frozen tma heads2 p16",
                                  "w1 k128 s3 b2 qreg c1 longest g16 frozen tma heads4",
                                  "w3 k64 s3 b1 c1 longest g16 frozen tma heads6"};

// Legal whatever the score: a warpgroup has rows of two heads.
constexpr const char* kSharedTile = "w2 k64 s3 b1 c1 longest g16 frozen tma heads4";

KernelPlan plan_of(const char* tile) {
  return parse_plan(fmt::format("sm90a forward sm_90a {}", tile)).value();
}

class HeadsAbreast : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  }
  // The plans that the spec has registers for.
  static std::vector<KernelPlan> plans(const AttentionSpec& spec) {
    KernelBank& bank = KernelBank::instance();
    std::vector<KernelPlan> plans;
    for (const char* tile : kTiles) {
      if (check_plan(spec, plan_of(tile), bank.device().facts()).ok())
        plans.push_back(plan_of(tile));
    }
    EXPECT_FALSE(plans.empty());
    return plans;
  }
};

const std::string kDense[] = {
    "dtype: bf16\nhead_dim: 128",
    "dtype: bf16\nhead_dim: 64\nmask: causal",
    "dtype: bf16\nhead_dim: 128\nmask: causal and (q_pos - kv_idx < 90 or kv_idx < 4)",
    "dtype: bf16\nhead_dim: 64\nmask: (q_idx + kv_idx) % 3 == 0\ndropout: 0.2",
    "dtype: bf16\nhead_dim: 128\nmask: causal\n"
    "score: score + exp2(-0.25 * (h + 1)) * (kv_idx - q_pos)",
    "dtype: bf16\nhead_dim: 64\nmask: doc[b, kv_idx] == h_kv or causal\nsink: sinks[h]\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}, sinks: {dtype: float32, dims: "
    "[heads]}}",
    "dtype: fp16\nhead_dim: 128",
    "dtype: fp16\nhead_dim: 64\nmask: causal",
    "dtype: fp16\nhead_dim: {qk: 96, v: 64}\nmask: causal\ndropout: 0.2"};

TEST_P(HeadsAbreast, IsRight) {
  const AttentionSpec spec = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  for (const int group : {1, 2, 3, 5, 8}) {
    for (const int q_len : {1, 64, 150}) {
      const ProblemShape shape = {
          .batch = 2, .heads = 2 * group, .kv_heads = 2, .q_len = q_len, .kv_len = 333};
      EXPECT_TRUE(judge(spec, random_problem(spec, shape, 7), plans(spec))) << to_string(shape);
    }
  }
}

TEST_P(HeadsAbreast, FaultsAreSeen) {
  const AttentionSpec spec = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  const ProblemShape shape = {.batch = 2, .heads = 10, .kv_heads = 2, .q_len = 150, .kv_len = 333};
  const std::vector<planted::Fault> faults = {
      {"a warpgroup has the head before", {{"Slice{c.h + head, q0", "Slice{c.h + head / 2, q0"}}},
      {"the last head of a group has no warpgroup",
       {{"return c.h + head < (c.h_kv + 1)", "return c.h + head + 1 < (c.h_kv + 1)"}}},
      {"every set is its group's first",
       {{"(set - kv_head * sets) * abreast", "(set - kv_head * sets) * 0"}}}};
  EXPECT_TRUE(are_found(faults, spec, shape, plans(spec).front()));
  const std::vector<planted::Fault> of_parts = {
      {"a warp has its warpgroup's first head", {{"* 16 / kHeadRows;", "* 0 / kHeadRows;"}}},
      {"the second head's queries lie where the first one's do",
       {{"first * kRowBytes, q_map", "0 * kRowBytes, q_map"}}},
      {"a head begins where the one before ends", {{"q0 - part * kHeadRows}", "q0}"}}}};
  EXPECT_TRUE(are_found(of_parts, spec, shape, plan_of(kSharedTile)));
}

INSTANTIATE_TEST_SUITE_P(Specs, HeadsAbreast, testing::ValuesIn(kDense),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

// Scores of one head that no constant reference serves: its warpgroup does all of its heads again.
TEST_P(HeadsAbreast, AHeadOfLargeScoresIsRightBesideOthers) {
  const AttentionSpec spec = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  const ProblemShape shape = {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 40, .kv_len = 700};
  for (const int hot : {0, 1, 6}) {
    HostProblem problem = random_problem(spec, shape, 3);
    const auto queries = static_cast<std::size_t>(shape.q_len * spec.head_dim_qk);
    for (double& value : std::span(problem.q).subspan(hot * queries, queries))
      value = round_to(spec.dtype, 40 * value);
    EXPECT_TRUE(judge(spec, problem, plans(spec))) << hot;
  }
}

constexpr const char* kSinks =
    "sink: sinks[h]\ntensors: {sinks: {dtype: float32, dims: [heads]}}\n";

class HeadsAbreastPacked : public HeadsAbreast {};

TEST_P(HeadsAbreastPacked, RandomBatches) {
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec = spec_of(fmt::format("name: t\nlayout: thd\n{}\n", GetParam()));
  for (const KernelPlan& plan : plans(spec)) {
    const auto kernel = bank.get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    packed::check_random(bank.device(), **kernel, spec, Arithmetic::kMatrixUnit, 2, 300);
    if (spec.sink == nullptr) packed::check_empty(bank.device(), **kernel, spec);
  }
}

const std::string kManySequences[] = {
    "dtype: bf16\nhead_dim: 64", "dtype: bf16\nhead_dim: 64\nmask: causal",
    "dtype: fp16\nhead_dim: 128\nmask: causal",
    "dtype: bf16\nhead_dim: 40\nmask: causal\ndropout: 0.2",
    std::string("dtype: fp16\nhead_dim: 64\nmask: causal\n") + kSinks};

INSTANTIATE_TEST_SUITE_P(Specs, HeadsAbreastPacked, testing::ValuesIn(kManySequences),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

class HeadsAbreastPaged : public HeadsAbreastPacked {};

TEST_P(HeadsAbreastPaged, RandomBatches) {
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec = spec_of(fmt::format("name: t\nlayout: paged\n{}\n", GetParam()));
  const auto cases = paged::paged_cases(spec, Arithmetic::kMatrixUnit, 2, 900);
  for (const KernelPlan& by_boxes : plans(spec)) {
    const DeviceFacts& facts = bank.device().facts();
    const auto by_rows = plan_for_any_pages(spec, by_boxes, facts);
    const auto of_small = plan_for_small_boxes(spec, by_boxes, facts);
    for (const KernelPlan& plan :
         {by_boxes, by_rows.value_or(by_boxes), of_small.value_or(by_boxes)}) {
      SCOPED_TRACE(to_string(plan));
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      paged::check_cases(bank.device(), **kernel, spec, cases);
      if (spec.sink == nullptr) paged::check_empty(bank.device(), **kernel, spec);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, HeadsAbreastPaged, testing::ValuesIn(kManySequences),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
