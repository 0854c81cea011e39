// What paged sequences must do on any device; a test hands over how it comes by a kernel.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/verification/paged.hpp"

namespace attune::paged {

inline constexpr int kJudgedRows = 400;  // what is written is looked at everywhere

// Random problems, each in another order of the cache.
inline void check_random(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                         Arithmetic arithmetic, int runs, std::uint64_t seed) {
  for (int run = 0; run < runs; ++run, ++seed) {
    std::mt19937_64 random(seed);
    HostProblem problem = random_paged(spec, random);
    const CacheOrder order = kCacheOrders[seed % std::size(kCacheOrders)];
    SCOPED_TRACE(fmt::format("seed {}, {}, pages of {}, order {}", seed, to_string(problem.shape),
                             problem.pages.size, static_cast<int>(order)));
    const packed::Cache cache = cache_in(order, spec, problem);
    const std::vector<Row> rows = sample_rows(problem, kJudgedRows, seed);
    const auto output = packed::run_packed(device, kernel, spec, problem, rows, &cache);
    ASSERT_TRUE(output.ok()) << render(output.error());
    EXPECT_EQ(compare(*output, oracle_forward(spec, problem, rows, arithmetic)).wrong, "");
  }
}

// A V that is a part of K.
inline void check_values_of_keys(Device& device, const LoadedKernel& kernel,
                                 const AttentionSpec& spec, Arithmetic arithmetic) {
  std::mt19937_64 random(3);
  HostProblem problem = random_paged(spec, random);
  make_values_of_keys(spec, problem);
  const packed::Cache cache = cache_in(CacheOrder::kValuesOfTheKeys, spec, problem);
  const std::vector<Row> rows = sample_rows(problem, kJudgedRows, 1);
  const auto output = packed::run_packed(device, kernel, spec, problem, rows, &cache);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_EQ(compare(*output, oracle_forward(spec, problem, rows, arithmetic)).wrong, "");
}

// Lengths around pages, tiles and steps, with one query and with some.
inline void check_lengths(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                          Arithmetic arithmetic) {
  std::uint64_t seed = 1;
  for (const std::int64_t page_size : {1, 3, 16, 48, 64, 256}) {
    const std::vector<std::int32_t> keys = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257};
    const std::vector<std::int32_t> queries = {1, 1, 16, 0, 1, 2, 33, 1, 5, 1, 1, 3};
    const ProblemShape shape{.batch = 12, .heads = 2, .kv_heads = 1, .q_len = 65, .kv_len = 257};
    const HostProblem problem = paged_problem(spec, shape, queries, keys, page_size, ++seed);
    const std::vector<Row> rows = all_rows(problem);
    const auto output = packed::run_packed(device, kernel, spec, problem, rows);
    ASSERT_TRUE(output.ok()) << page_size << ": " << render(output.error());
    EXPECT_EQ(compare(*output, oracle_forward(spec, problem, rows, arithmetic)).wrong, "")
        << page_size;
  }
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

// Offsets, lengths and pages that no caller should give.
inline HostProblem garbage_problem(const AttentionSpec& spec, int run, std::mt19937_64& random) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                         kMost = std::numeric_limits<std::int32_t>::max();
  const ProblemShape shape{.batch = 9, .heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 200};
  const std::vector<std::int32_t> queries = {1, 40, 0, 100, 20, 39, 50, 49, 1};
  const std::vector<std::int32_t> keys = {200, 199, 1, 0, 64, 16, 100, 150, 200};
  const std::int64_t page_sizes[] = {1, 3, 16, 64, 256};
  HostProblem problem = paged_problem(spec, shape, queries, keys, page_sizes[run % 5], random());
  const auto spoil = [&](std::vector<std::int32_t>& values, std::int32_t bound, bool all) {
    for (std::int32_t& value : values) {
      if (!all && random() % 3 != 0) continue;
      value = run % 2 == 0 ? std::uniform_int_distribution(kLeast, kMost)(random)
                           : std::uniform_int_distribution(-bound, 2 * bound)(random);
    }
  };
  const auto pages = static_cast<std::int32_t>(problem.pages.count);
  spoil(problem.pages.table, pages, false);
  if (run % 3 == 1) spoil(problem.sequences.used_kv, 400, true);
  if (run % 3 == 2) spoil(problem.sequences.cu_q, 400, true);
  return problem;
}

// Nothing beside the buffers is written, and every launch ends.
inline void check_garbage(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
  std::mt19937_64 random(5);
  for (int run = 0; run < 20; ++run) {
    const HostProblem problem = garbage_problem(spec, run, random);
    const Status status = packed::run_garbage(device, kernel, spec, problem);
    EXPECT_TRUE(status.ok()) << run << ": " << render(status.error());
  }
}

}  // namespace attune::paged
