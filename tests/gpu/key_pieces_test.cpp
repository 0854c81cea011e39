// Hopper's forward plans that cut an item's keys in pieces: more pieces than tiles, lengths that
// tiles do not divide, rows whose keys all lie in one piece or nowhere; what is done again; and
// faults planted in how pieces come together.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "generator/plan/any_pages.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/key_piece_faults.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kTiles[] = {"w2 k128 s2 b2 qreg c1 single g1 frozen tma p4",
                                  "w1 k128 s2 b2 c1 single g1 frozen tma p3",
                                  "w3 k64 s3 b1 c1 single g1 frozen tma heads p16",
                                  "w2 k64 s3 b1 qreg c1 single g1 frozen tma p2",
                                  "w2 k64 s2 b1 c1 single g1 tma p6",
                                  "w2 k64 s2 b1 c1 longest g8 frozen tma p8",
                                  "w2 k96 s2 b1 c1 persistent g1 frozen p5"};

constexpr int kLeastBoxRows = 16;  // of a page

KernelPlan plan_of(const char* tile) {
  return parse_plan(fmt::format("sm90a forward sm_90a {}", tile)).value();
}

class KeyPieces : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  }
  // The plans that the spec has registers for.
  static std::vector<KernelPlan> plans(const AttentionSpec& spec) { return plans(spec, kTiles); }
  static std::vector<KernelPlan> plans(const AttentionSpec& spec,
                                       std::span<const char* const> tiles) {
    KernelBank& bank = KernelBank::instance();
    std::vector<KernelPlan> plans;
    std::vector<Request> requests;
    for (const char* tile : tiles) {
      if (!check_plan(spec, plan_of(tile), bank.device().facts()).ok()) continue;
      plans.push_back(plan_of(tile));
      requests.push_back({spec, plans.back()});
    }
    EXPECT_FALSE(plans.empty());
    bank.prepare(requests);
    return plans;
  }
};

constexpr const char* kSpecs[] = {
    "head_dim: 128",
    "head_dim: 64\nmask: causal",
    "head_dim: 80\nmask: causal and (q_pos - kv_idx < 90 or kv_idx < 4)",
    "head_dim: 64\nmask: (q_idx + kv_idx) % 3 == 0\ndropout: 0.2",
    "head_dim: 128\nmask: causal\nscore: score + exp2(-0.25 * (h + 1)) * (kv_idx - q_pos)",
    "head_dim: 128\nscore: score - 0.1 * abs(kv_idx - q_pos)",
    "head_dim: 128\nscore: 20 * tanh(score / 20)",
    "head_dim: 256\nmask: kv_idx >= 200",
    "head_dim: {qk: 192, v: 128}\nmask: causal\naccuracy: strict",
    "head_dim: 64\nmask: doc[b, kv_idx] == h_kv or causal\nsink: sinks[h]\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}, sinks: {dtype: float32, dims: "
    "[heads]}}"};

TEST_P(KeyPieces, IsRight) {
  for (const char* dtype : {"bf16", "fp16"}) {
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}\n", dtype, GetParam()));
    const std::vector<KernelPlan> all = plans(spec);
    for (const auto& [q_len, kv_len] : {std::pair{150, 1333}, {1, 1}, {17, 129}, {129, 64}}) {
      const ProblemShape shape = {
          .batch = 2, .heads = 6, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len};
      EXPECT_TRUE(judge(spec, random_problem(spec, shape, 7), all))
          << dtype << " " << to_string(shape);
    }
  }
}

TEST_P(KeyPieces, FaultsAreSeen) {
  const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: bf16\n{}\n", GetParam()));
  const auto* const tile = std::ranges::find_if(kTiles, [&](const char* text) {
    return check_plan(spec, plan_of(text), KernelBank::instance().device().facts()).ok();
  });
  const KernelPlan plan = plan_of(*tile);
  const ProblemShape shape = {.batch = 2, .heads = 6, .kv_heads = 2, .q_len = 150, .kv_len = 1333};
  EXPECT_TRUE(are_found(planted::key_piece_faults(), spec, shape, plan));
}

INSTANTIATE_TEST_SUITE_P(Specs, KeyPieces, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

// Packed, with and without pages: lengths that differ by thousands, so that items have one, some
// and many pieces. Their few items every CTA finds for itself; of more sequences there is a list,
// from which items may be cut or not.
class KeyPiecesPacked : public KeyPieces {
 protected:
  static constexpr const char* kPackedTiles[] = {
      "w2 k128 s2 b2 c1 longest g16 frozen tma p16",
      "w1 k64 s3 b1 qreg c1 longest g32 frozen tma p16",
      "w2 k64 s3 b1 c1 persistent g1 frozen tma heads p3",
      "w2 k64 s2 b1 c1 longest g32 tma p16",
      "w2 k64 s3 b1 c1 longest g16 frozen tma heads4 p16",
      "w1 k64 s3 b1 qreg c1 longest g16 frozen tma heads4"};
  // With so many the list is longer than what may be cut of it, and is cut.
  static constexpr int kManyOthers = 240;
  const std::vector<std::int32_t> queries_ = {128, 1, 3, 0, 1, 200, 17, 5, 64};
  const std::vector<std::int32_t> keys_ = {9000, 3, 500, 100, 0, 7001, 900, 4, 64};

  // Behind so many short ones.
  HostProblem problem(const AttentionSpec& spec, int others) const {
    std::vector<std::int32_t> cu_q = {0}, cu_kv = {0};
    for (int i = 0; i < others; ++i) {
      cu_q.push_back(cu_q.back() + i % 3);
      cu_kv.push_back(cu_kv.back() + i % 5);
    }
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      cu_q.push_back(cu_q.back() + queries_[i]);
      cu_kv.push_back(cu_kv.back() + keys_[i]);
    }
    const ProblemShape shape{.batch = 9 + others,
                             .heads = 6,
                             .kv_heads = 2,
                             .q_len = cu_q.back(),
                             .kv_len = cu_kv.back()};
    return packed::packed_problem(spec, shape, {.cu_q = cu_q, .cu_kv = cu_kv}, 5);
  }
};

TEST_P(KeyPiecesPacked, LongSequencesBesideShortOnes) {
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: thd\n{}", GetParam()));
  const std::vector<KernelPlan> all = plans(spec, kPackedTiles);
  for (const int others : {0, 30, 130, kManyOthers}) {
    HostProblem problem = this->problem(spec, others);
    packed::spoil_foreign(spec, problem, 3);
    const std::vector<Row> rows = all_rows(problem);
    const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
    for (const KernelPlan& plan : all) {
      SCOPED_TRACE(fmt::format("{}, {} more sequences", to_string(plan), others));
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto first = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
      ASSERT_TRUE(first.ok()) << render(first.error());
      EXPECT_EQ(compare(*first, exact).wrong, "");
      const auto second = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
      ASSERT_TRUE(second.ok()) << render(second.error());
      EXPECT_EQ(first->o, second->o) << "not the same to the bit";
    }
  }
  for (const KernelPlan& plan : all) {
    SCOPED_TRACE(to_string(plan));
    const auto kernel = bank.get(spec, plan);
    packed::check_random(bank.device(), **kernel, spec, Arithmetic::kMatrixUnit, 2, 300);
    if (spec.sink == nullptr) packed::check_empty(bank.device(), **kernel, spec);
  }
}

// Of found items (no others) and of a list's.
TEST_P(KeyPiecesPacked, KeptCountersAreSeen) {
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: thd\n{}", GetParam()));
  const auto kernel = kernel_with(planted::kept_counters(), spec, plan_of(kPackedTiles[0]));
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  for (const int others : {0, 30}) {
    const HostProblem problem = this->problem(spec, others);
    const std::vector<Row> rows = all_rows(problem);
    const auto output = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
    if (!output.ok()) {
      EXPECT_NE(render(output.error()).find("not written"), std::string::npos)
          << render(output.error());
      continue;
    }
    const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
    EXPECT_NE(compare(*output, exact).wrong, "") << others << " more sequences";
  }
}

// The CTA that lists them goes through them twice.
TEST_P(KeyPiecesPacked, MoreItemsThanThreadsThatListThem) {
  constexpr int kOthers = 1700;
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: thd\n{}", GetParam()));
  const HostProblem problem = this->problem(spec, kOthers);
  std::vector<Row> rows = all_rows(problem);
  std::erase_if(rows, [](const Row& row) { return row.b >= kOthers; });
  const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
  for (const char* tile : {kPackedTiles[0], "w2 k64 s3 b1 c1 longest g16 frozen tma heads4"}) {
    SCOPED_TRACE(tile);
    const auto kernel = bank.get(spec, plan_of(tile));
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const auto output = packed::run_packed(bank.device(), **kernel, spec, problem, rows);
    ASSERT_TRUE(output.ok()) << render(output.error());
    EXPECT_EQ(compare(*output, exact).wrong, "");
  }
}

TEST_P(KeyPiecesPacked, ItemsBehindThoseThatAreCutAreSeen) {
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: thd\n{}", GetParam()));
  const auto kernel = kernel_with(planted::skipped_items(), spec, plan_of(kPackedTiles[0]));
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const HostProblem problem = this->problem(spec, kManyOthers);
  const auto output = packed::run_packed(bank.device(), **kernel, spec, problem, all_rows(problem));
  ASSERT_FALSE(output.ok());
  EXPECT_NE(render(output.error()).find("not written"), std::string::npos)
      << render(output.error());
}

TEST_P(KeyPiecesPacked, Pages) {
  KernelBank& bank = KernelBank::instance();
  const ProblemShape shape{.batch = 9, .heads = 6, .kv_heads = 2, .q_len = 419, .kv_len = 9000};
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: paged\n{}", GetParam()));
  const std::vector<KernelPlan> all = plans(spec, kPackedTiles);
  for (const int page_size : {1, 8, 16, 64}) {
    HostProblem problem = paged::paged_problem(spec, shape, queries_, keys_, page_size, 9);
    std::vector<Row> rows = all_rows(problem);
    std::vector<paged::PagedCase> cases;
    cases.push_back(paged::case_of(spec, Arithmetic::kMatrixUnit, std::move(problem),
                                   paged::CacheOrder::kTokensFirst, std::move(rows),
                                   "long beside short"));
    for (KernelPlan plan : all) {
      if (page_size < kLeastBoxRows) {
        plan = plan_for_any_pages(spec, plan, bank.device().facts()).value();
      }
      SCOPED_TRACE(to_string(plan));
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      paged::check_cases(bank.device(), **kernel, spec, cases);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, KeyPiecesPacked,
    testing::Values("head_dim: 128\n", "head_dim: 64\nmask: causal\n",
                    "head_dim: 64\nmask: causal and (q_pos - kv_idx < 700 or kv_idx < 4)\n",
                    "head_dim: 64\nmask: causal\nsink: sinks[h]\n"
                    "tensors: {sinks: {dtype: float32, dims: [heads]}}\n"),
    [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
