// A launch on paged sequences that was captured once serves other lengths, other tables and other
// keys.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "generator/plan/any_pages.hpp"
#include "tests/gpu/driver.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/replayed.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tests/verification/shared_prefix.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

// A multiple of every size of a page.
constexpr ProblemShape kShape{.batch = 5, .heads = 8, .kv_heads = 2, .q_len = 40, .kv_len = 3008};
constexpr int kMost = kShape.kv_len;

struct Lengths {
  std::vector<std::int32_t> queries, keys;
  std::int64_t common;  // keys that all begin with alike
};
const Lengths kLengths[] = {{{1, 1, 1, 1, 1}, {100, kMost, 17, 1, 64}, 0},
                            {{1, 1, 1, 1, 1}, {2001, 3000, 2018, 2500, 2065}, 2000},
                            {{1, 1, 1, 1, 1}, {101, 2, 18, 0, 65}, 0},
                            {{8, 0, 30, 1, 1}, {3000, 3000, 3000, 3000, 2999}, 1500},
                            {{0, 0, 0, 0, 40}, {0, 0, 0, 0, 1500}, 0},
                            {{3, 2, 1, 3, 2}, {1, 100, 1000, 10, 700}, 0}};

// Other lengths for the sequences of a problem whose pages are all full, of the pages that it has:
// single queries or several, few keys or many, or as many as fill a page but one; some begin with
// the pages of the sequence before.
void redraw(HostProblem& problem, const std::vector<std::int32_t>& pages, std::mt19937_64& random) {
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(bound));
  };
  const std::int32_t kind = below(3);
  const auto size = static_cast<std::int32_t>(problem.pages.size);
  std::int32_t left = kShape.q_len;
  problem.sequences.cu_q = {0};
  for (std::size_t b = 0; b < kShape.batch; ++b) {
    const std::int32_t queries = std::min(left, kind == 0       ? 1
                                                : kind == 1     ? below(9)
                                                : below(4) == 0 ? below(41)
                                                                : 0);
    left -= queries;
    problem.sequences.cu_q.push_back(problem.sequences.cu_q.back() + queries);
    const std::int32_t some = below(4) == 0 ? below(70) : below(kMost + 1);
    problem.sequences.used_kv[b] =
        below(3) == 0 ? std::clamp(some / size * size + below(3) - 1, 0, kMost) : some;
  }
  const auto each = static_cast<std::size_t>(problem.pages.per_sequence);
  auto& table = problem.pages.table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = pages[static_cast<std::size_t>(below(static_cast<std::int64_t>(pages.size())))];
  }
  for (std::size_t b = 1; b < kShape.batch; ++b) {
    if (below(2) == 0) continue;
    const auto shared = static_cast<std::ptrdiff_t>(below(static_cast<std::int64_t>(each) + 1));
    const auto own = table.begin() + static_cast<std::ptrdiff_t>(b * each);
    std::copy_n(own - static_cast<std::ptrdiff_t>(each), shared, own);
  }
}

class PagedGraph : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    for (const KernelPlan& plan : plans_of_families(spec_, kTypical, bank.device().facts())) {
      const bool has_boxes = plan.family() != Family::kSm90a || page_size_ % 16 == 0;
      const auto by_rows = plan_for_any_pages(spec_, plan, bank.device().facts());
      const auto of_small = plan_for_small_boxes(spec_, plan, bank.device().facts());
      if (has_boxes) requests_.push_back({spec_, plan});
      if (by_rows) requests_.push_back({spec_, *by_rows});
      if (has_boxes && of_small) requests_.push_back({spec_, *of_small});
    }
    EXPECT_GE(requests_.size(), 2u) << "decode and sm80";
    bank.prepare(requests_);
  }

  const AttentionSpec spec_ =
      spec_of(fmt::format("name: t\ndtype: bf16\nlayout: paged\n{}", std::get<0>(GetParam())));
  const std::int64_t page_size_ = std::get<1>(GetParam());
  std::vector<Request> requests_;
};

TEST_P(PagedGraph, ReplaysWithOtherLengthsTablesAndKeys) {
  KernelBank& bank = KernelBank::instance();
  std::vector<HostProblem> problems;
  std::vector<std::vector<Row>> rows;
  std::vector<ForwardOracle> exact;
  const std::int64_t pages = kShape.batch * (kShape.kv_len / page_size_ + 1) + 3;
  std::uint64_t seed = 1;
  for (const auto& [queries, keys, common] : kLengths) {
    problems.push_back(
        shared_prefix::shared_problem(spec_, kShape, queries, keys, page_size_, common, ++seed));
    paged::add_idle_pages(spec_, problems.back(), pages);
    rows.push_back(all_rows(problems.back()));
    exact.push_back(oracle_forward(spec_, problems.back(), rows.back(), Arithmetic::kMatrixUnit));
  }
  for (const Request& request : requests_) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(spec_, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    Replayed replayed(bank.device(), spec_, problems.front());
    void* const workspace = replayed.allocate((*kernel)->workspace_bytes(kShape) + 16);
    replayed.put(problems.front());
    const Stream stream;
    Status launched = ok_status();
    const Graph graph(stream, [&](CUstream on) {
      launched = (*kernel)->launch(replayed.params(), workspace, on);
    });
    ASSERT_TRUE(launched.ok()) << render(launched.error());
    for (std::size_t i = 0; i < problems.size(); ++i) {
      SCOPED_TRACE(i);
      replayed.put(problems[i]);
      graph.launch(stream);
      EXPECT_EQ(compare(replayed.rows(problems[i], rows[i]), exact[i]).wrong, "");
    }
  }
}

// Each replay is the plain launch to the bit, on the same keys; every 50th is judged as well.
TEST_P(PagedGraph, ReplaysWithFiveHundredSetsOfLengths) {
  constexpr int kReplays = 500, kJudged = 50, kRows = 60;
  KernelBank& bank = KernelBank::instance();
  HostProblem problem =
      paged::paged_problem(spec_, kShape, {8, 8, 8, 8, 8},
                           std::vector<std::int32_t>(kShape.batch, kMost), page_size_, 5);
  const std::vector<std::int32_t> pages = problem.pages.table;  // all but those of NaN
  ASSERT_EQ(std::ranges::count(pages, -1), 0);
  for (const Request& request : requests_) {
    SCOPED_TRACE(to_string(request.plan));
    const auto kernel = bank.get(spec_, request.plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    Replayed replayed(bank.device(), spec_, problem);
    const std::size_t room = (*kernel)->workspace_bytes(kShape) + 16;
    void* const workspace = replayed.allocate(room);
    void* const twins_workspace = replayed.allocate(room);
    const att::LaunchParams twin = replayed.twin();
    replayed.put(problem);
    const Stream stream;
    Status launched = ok_status();
    const Graph graph(stream, [&](CUstream on) {
      launched = (*kernel)->launch(replayed.params(), workspace, on);
    });
    ASSERT_TRUE(launched.ok()) << render(launched.error());
    std::mt19937_64 random(7);
    for (int replay = 0; replay < kReplays && !HasFailure(); ++replay) {
      SCOPED_TRACE(replay);
      redraw(problem, pages, random);
      replayed.put_sequences(problem);
      replayed.spoil_outputs(twin);
      graph.launch(stream);
      const Status plain = (*kernel)->launch(twin, twins_workspace, stream.get());
      ASSERT_TRUE(plain.ok()) << render(plain.error());
      EXPECT_EQ(replayed.outputs(replayed.params()), replayed.outputs(twin));
      if (replay % kJudged != 0) continue;
      const std::vector<Row> rows = sample_rows(problem, kRows, static_cast<std::uint64_t>(replay));
      const ForwardOracle exact = oracle_forward(spec_, problem, rows, Arithmetic::kMatrixUnit);
      EXPECT_EQ(compare(replayed.rows(problem, rows), exact).wrong, "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, PagedGraph,
    testing::Combine(testing::Values("head_dim: 128\nmask: causal\n", "head_dim: 64\n",
                                     "head_dim: 128\nmask: causal\nshared_prefixes: true\n"),
                     testing::Values(1, 16, 64)),
    [](const auto& test) {
      return fmt::format("Spec{}_Pages{}", test.index / 3, std::get<1>(test.param));
    });

}  // namespace
}  // namespace attune::gpu_test
