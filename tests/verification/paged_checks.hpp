// What paged sequences must do on any device; a test hands over how it comes by a kernel.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/verification/paged.hpp"

namespace attune::paged {

inline constexpr int kJudgedRows = 400;  // what is written is looked at everywhere

// A problem with what is right.
struct PagedCase {
  std::string what;
  HostProblem problem;
  packed::Cache cache;
  std::vector<Row> rows;
  ForwardOracle exact;
};

inline PagedCase case_of(const AttentionSpec& spec, Arithmetic arithmetic, HostProblem problem,
                         CacheOrder order, std::vector<Row> rows, const std::string& what) {
  PagedCase made{
      .what = fmt::format("{}, {}, pages of {}, order {}", what, to_string(problem.shape),
                          problem.pages.size, static_cast<int>(order)),
      .problem = std::move(problem),
      .cache = {},
      .rows = std::move(rows),
      .exact = {}};
  made.cache = cache_in(order, spec, made.problem);
  made.exact = oracle_forward(spec, made.problem, made.rows, arithmetic);
  return made;
}

// A random problem, with NaN in pages that no sequence has and behind each one's last key.
inline PagedCase random_case(const AttentionSpec& spec, Arithmetic arithmetic, std::uint64_t seed,
                             std::int32_t longest = 2000) {
  std::mt19937_64 numbers(seed);
  HostProblem problem = random_paged(spec, numbers, longest);
  std::vector<Row> rows = sample_rows(problem, kJudgedRows, seed);
  return case_of(spec, arithmetic, std::move(problem), kCacheOrders[seed % std::size(kCacheOrders)],
                 std::move(rows), fmt::format("seed {}", seed));
}

// `random` random problems, each in another order of the cache; lengths around pages, tiles and
// steps, with one query and with some; a V that is a part of K.
inline std::vector<PagedCase> paged_cases(const AttentionSpec& spec, Arithmetic arithmetic,
                                          int random, std::uint64_t seed) {
  std::vector<PagedCase> cases;
  for (int i = 0; i < random; ++i, ++seed) cases.push_back(random_case(spec, arithmetic, seed));
  for (const std::int64_t page_size : {1, 3, 16, 48, 64, 256}) {
    const std::vector<std::int32_t> keys = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257};
    const std::vector<std::int32_t> queries = {1, 1, 16, 0, 1, 2, 33, 1, 5, 1, 1, 3};
    const ProblemShape shape{.batch = 12, .heads = 2, .kv_heads = 1, .q_len = 65, .kv_len = 257};
    HostProblem problem = paged_problem(spec, shape, queries, keys, page_size, ++seed);
    std::vector<Row> rows = all_rows(problem);
    cases.push_back(case_of(spec, arithmetic, std::move(problem), CacheOrder::kTokensFirst,
                            std::move(rows), "lengths around pages"));
  }
  if (spec.head_dim_qk == spec.head_dim_v) {
    std::mt19937_64 numbers(3);
    HostProblem problem = random_paged(spec, numbers);
    make_values_of_keys(spec, problem);
    std::vector<Row> rows = sample_rows(problem, kJudgedRows, 1);
    cases.push_back(case_of(spec, arithmetic, std::move(problem), CacheOrder::kValuesOfTheKeys,
                            std::move(rows), "V of K"));
  }
  return cases;
}

// Whether the launch was refused because no tensor unit walks pages of so few rows.
inline bool refuses_pages(const Error& error, std::int64_t page_size) {
  return error.id == kStridesUnsupported && page_size % 16 != 0;
}

// False where the kernel refuses the pages.
inline bool check_case(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                       const PagedCase& c) {
  SCOPED_TRACE(c.what);
  const auto output = packed::run_packed(device, kernel, spec, c.problem, c.rows, &c.cache);
  if (!output.ok() && refuses_pages(output.error(), c.problem.pages.size)) return false;
  EXPECT_EQ(output.ok() ? compare(*output, c.exact).wrong : render(output.error()), "");
  return true;
}

inline void check_cases(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                        const std::vector<PagedCase>& cases) {
  std::size_t served = 0;
  for (const PagedCase& c : cases) served += check_case(device, kernel, spec, c) ? 1 : 0;
  EXPECT_GT(served, 0u);
}

// Queries without keys have O = 0 and LSE = -inf. No page of the cache is read: all are NaN.
inline void check_empty(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
  const ProblemShape shape{.batch = 3, .heads = 2, .kv_heads = 2, .q_len = 40, .kv_len = 50};
  const HostProblem keyless = paged_problem(spec, shape, {1, 0, 39}, {0, 0, 0}, 16, 1);
  const std::vector<Row> rows = all_rows(keyless);
  const auto output = packed::run_packed(device, kernel, spec, keyless, rows);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_TRUE(std::ranges::all_of(output->o, [](double x) { return x == 0; }));
  EXPECT_TRUE(std::ranges::all_of(
      output->lse, [](double x) { return x == -std::numeric_limits<double>::infinity(); }));
}

// Offsets, lengths and pages that no caller should give, in pages of every size.
inline std::vector<HostProblem> garbage_problems(const AttentionSpec& spec, int count = 20) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                         kMost = std::numeric_limits<std::int32_t>::max();
  const ProblemShape shape{.batch = 9, .heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 200};
  const std::vector<std::int32_t> queries = {1, 40, 0, 100, 20, 39, 50, 49, 1};
  const std::vector<std::int32_t> keys = {200, 199, 1, 0, 64, 16, 100, 150, 200};
  std::mt19937_64 random(5);
  // Their numbers are those of few problems: to draw them takes longer than all else.
  std::vector<HostProblem> sane;
  for (const std::int64_t page_size : {1, 3, 16, 64, 256})
    sane.push_back(paged_problem(spec, shape, queries, keys, page_size, random()));
  std::vector<HostProblem> problems;
  for (int run = 0; run < count; ++run) {
    HostProblem problem = sane[static_cast<std::size_t>(run) % sane.size()];
    const auto spoil = [&](std::vector<std::int32_t>& values, std::int32_t bound, bool all) {
      for (std::int32_t& value : values) {
        if (!all && random() % 3 != 0) continue;
        value = run % 2 == 0 ? std::uniform_int_distribution(kLeast, kMost)(random)
                             : std::uniform_int_distribution(-bound, 2 * bound)(random);
      }
    };
    spoil(problem.pages.table, static_cast<std::int32_t>(problem.pages.count), false);
    if (run % 3 == 1) spoil(problem.sequences.used_kv, 400, true);
    if (run % 3 == 2) spoil(problem.sequences.cu_q, 400, true);
    problems.push_back(std::move(problem));
  }
  return problems;
}

// Nothing but O and LSE is written, and every launch ends. The problems are garbage_problems().
inline void check_garbage(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                          const std::vector<HostProblem>& problems) {
  for (std::size_t run = 0; run < problems.size(); ++run) {
    const Status status = packed::run_garbage(device, kernel, spec, problems[run]);
    if (!status.ok() && refuses_pages(status.error(), problems[run].pages.size)) continue;
    EXPECT_TRUE(status.ok()) << run << ": " << render(status.error());
  }
}

}  // namespace attune::paged
