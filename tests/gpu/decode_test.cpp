// Few queries on many keys: the decode family's pieces, units and merging.
#include <fmt/format.h>

#include "tests/gpu/judge.hpp"
#include "tests/verification/packed_checks.hpp"

namespace attune::gpu_test {
namespace {

// Plans that differ in what merging does: one warp's steps, more pieces than units, more pieces
// than a warp has lanes, warps whose number is no power of two, pieces that are a cluster.
constexpr const char* kPlans[] = {
    "q16 k16 s3 w4 p1",           "q16 k32 s2 w4 p3",           "q16 k16 s4 w8 p12",
    "q16 k16 s3 w1 p48",          "q16 k16 s3 w3 p5",           "q32 k16 s2 w6 p7",
    "q16 k16 s3 w8 p8 cluster",   "q32 k16 s3 w4 p4 cluster",   "q16 k16 s3 w4 p16 stretches",
    "q16 k16 s2 w8 p1 stretches", "q32 k32 s2 w4 p2 stretches", "q16 k16 s4 w3 p64 stretches"};

struct Case {
  const char* name;
  const char* spec;
  ProblemShape shape;
};

const Case kCases[] = {
    {"OneQuery",
     "head_dim: 128",
     {.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 4097}},
    {"OneKey", "head_dim: 64", {.batch = 2, .heads = 3, .kv_heads = 1, .q_len = 1, .kv_len = 1}},
    {"GroupOfFive",
     "head_dim: 96\nmask: causal",
     {.batch = 1, .heads = 10, .kv_heads = 2, .q_len = 3, .kv_len = 777}},
    {"HeadsInTwoItems",
     "head_dim: 64\nmask: causal",
     {.batch = 1, .heads = 24, .kv_heads = 1, .q_len = 3, .kv_len = 500}},
    {"MoreQueriesThanRows",
     "head_dim: 40\nmask: causal",
     {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 50, .kv_len = 300}},
    {"RowsWithoutKeys",
     "head_dim: 64\nmask: causal",
     {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 9, .kv_len = 4}},
    {"WindowAndSinks",
     "head_dim: 128\nmask: causal and (q_pos - kv_idx < 300 or kv_idx < 4)",
     {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 2, .kv_len = 9000}},
    {"UnitsOfManySteps",
     "head_dim: 32\nmask: causal and (kv_idx // 1000) % 3 == 1",
     {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 2, .kv_len = 300000}},
    {"HeadsOfDifferentMasks",
     "head_dim: 64\nmask: causal and q_pos - kv_idx < 100 * (h + 1)",
     {.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 2, .kv_len = 3000}},
    {"SinkLogits",
     "head_dim: 64\ntensors: {sinks: {dtype: float32, dims: [heads]}}\nsink: sinks[h]",
     {.batch = 2, .heads = 8, .kv_heads = 1, .q_len = 1, .kv_len = 2000}},
    {"ScoreByHead",
     "head_dim: 64\ntensors: {slope: {dtype: float32, dims: [heads]}}\n"
     "score: score + slope[h] * (kv_idx - q_pos)\nmask: causal",
     {.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 4, .kv_len = 1000}},
    {"DocumentsOfATensor",
     "head_dim: 64\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
     "mask: causal and document(doc)",
     {.batch = 3, .heads = 4, .kv_heads = 2, .q_len = 8, .kv_len = 1500}},
    {"WideHeads",
     "head_dim: 256",
     {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1, .kv_len = 1000}},
    {"ValuesOfOtherWidth",
     "head_dim: {qk: 192, v: 128}\nmask: causal",
     {.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 3, .kv_len = 1000}},
};

class Decode : public testing::TestWithParam<Case> {};

TEST_P(Decode, IsRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const Case& c = GetParam();
  for (const char* dtype : {"bf16", "fp16"}) {
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}\n", dtype, c.spec));
    std::vector<KernelPlan> plans;
    for (const char* text : kPlans) {
      const auto plan = parse_plan(
          fmt::format("decode forward {} {}", to_string(bank.device().facts().target), text));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      if (check_plan(spec, *plan, bank.device().facts()).ok()) plans.push_back(*plan);
    }
    ASSERT_GE(plans.size(), 2u);
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans) requests.push_back({spec, plan});
    bank.prepare(requests);
    EXPECT_TRUE(judge(spec, random_problem(spec, c.shape, 7), plans)) << dtype;
  }
}

// Lengths that differ by thousands, so that sequences have one, some and many pieces; several
// queries of some of them, none and no keys of others.
TEST(DecodePacked, LongSequencesBesideShortOnes) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  std::vector<std::int32_t> cu_q = {0}, cu_kv = {0};
  for (const auto& [queries, keys] : {std::pair{1, 30000},
                                      {1, 3},
                                      {3, 500},
                                      {0, 100},
                                      {1, 0},
                                      {2, 7001},
                                      {17, 900},
                                      {5, 4},
                                      {1, 64}}) {
    cu_q.push_back(cu_q.back() + queries);
    cu_kv.push_back(cu_kv.back() + keys);
  }
  const ProblemShape shape{
      .batch = 9, .heads = 6, .kv_heads = 2, .q_len = cu_q.back(), .kv_len = cu_kv.back()};
  // Each spec has a third of the plans, as a launch here takes a second; each plan has a spec.
  constexpr std::size_t kTurns = 3;
  std::size_t first_plan = 0;
  std::uint64_t seed = 3;
  for (const char* lines : {"head_dim: 128\n", "head_dim: 64\nmask: causal\n",
                            "head_dim: 64\nmask: causal and (q_pos - kv_idx < 700 or kv_idx < 4)\n",
                            "head_dim: 64\nmask: causal\nsink: sinks[h]\n"
                            "tensors: {sinks: {dtype: float32, dims: [heads]}}\n"}) {
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: bf16\nlayout: thd\n{}", lines));
    std::vector<Request> requests;
    for (std::size_t i = first_plan++; i < std::size(kPlans); i += kTurns) {
      const auto plan = parse_plan(
          fmt::format("decode forward {} {}", to_string(bank.device().facts().target), kPlans[i]));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      if (check_plan(spec, *plan, bank.device().facts()).ok()) requests.push_back({spec, *plan});
    }
    bank.prepare(requests);
    HostProblem problem =
        packed::packed_problem(spec, shape, {.cu_q = cu_q, .cu_kv = cu_kv}, ++seed);
    packed::spoil_foreign(spec, problem, 3);
    const std::vector<Row> rows = all_rows(problem);
    const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
    for (const Request& request : requests) {
      SCOPED_TRACE(fmt::format("{}{}", lines, to_string(request.plan)));
      const auto kernel = bank.get(spec, request.plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto first = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
      ASSERT_TRUE(first.ok()) << render(first.error());
      EXPECT_EQ(compare(*first, exact).wrong, "");
      const auto second = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
      ASSERT_TRUE(second.ok()) << render(second.error());
      EXPECT_EQ(first->o, second->o) << "not the same to the bit";
    }
  }
}

// More sequences than a warp has lanes, whose items every CTA finds for itself, and more heads of a
// K/V head than an item has rows.
TEST(DecodePacked, ItemsOfManySequencesAreFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  std::vector<std::int32_t> cu_q = {0}, cu_kv = {0};
  for (int b = 0; b < 75; ++b) {
    cu_q.push_back(cu_q.back() + (b % 7 == 3 ? 0 : b % 11 == 5 ? 20 : 1));
    cu_kv.push_back(cu_kv.back() + (b % 13 == 8 ? 0 : 3 + 37 * b % 150));
  }
  const ProblemShape shape{
      .batch = 75, .heads = 40, .kv_heads = 2, .q_len = cu_q.back(), .kv_len = cu_kv.back()};
  const AttentionSpec spec =
      spec_of("name: t\ndtype: bf16\nlayout: thd\nhead_dim: 64\nmask: causal\n");
  std::vector<Request> requests;
  for (const char* tile : {"q16 k16 s3 w4 p1", "q32 k32 s2 w8 p1", "q16 k16 s3 w4 p4 cluster"}) {
    const auto plan = parse_plan(
        fmt::format("decode forward {} {}", to_string(bank.device().facts().target), tile));
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    if (check_plan(spec, *plan, bank.device().facts()).ok()) requests.push_back({spec, *plan});
  }
  ASSERT_GE(requests.size(), 2u) << "both plans of whole items are legal on every GPU";
  bank.prepare(requests);
  const HostProblem problem =
      packed::packed_problem(spec, shape, {.cu_q = cu_q, .cu_kv = cu_kv}, 5);
  const std::vector<Row> rows = all_rows(problem);
  const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
  for (const Request& request : requests) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(spec, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const auto found = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
    ASSERT_TRUE(found.ok()) << render(found.error());
    EXPECT_EQ(compare(*found, exact).wrong, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Decode, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace attune::gpu_test
