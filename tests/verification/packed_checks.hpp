// What packed sequences must do on any device; a test hands over how it comes by a kernel.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "tests/verification/packed.hpp"

namespace attune::packed {

// A problem with what is right.
struct PackedCase {
  std::string what;
  HostProblem problem;
  std::vector<Row> rows;
  ForwardOracle exact;
};

// A random problem, with NaN in all that is not of the judged sequences.
inline PackedCase random_case(const AttentionSpec& spec, Arithmetic arithmetic, std::uint64_t seed,
                              int most = 20, int longest = 701) {
  constexpr int kRows = 400;  // judged; what is written is looked at everywhere
  std::mt19937_64 random(seed);
  PackedCase made{.what = fmt::format("seed {}", seed),
                  .problem = random_packed(spec, random, most, longest),
                  .rows = {},
                  .exact = {}};
  const int foreign = std::uniform_int_distribution<int>(
      -1, static_cast<int>(made.problem.shape.batch) - 1)(random);
  spoil_foreign(spec, made.problem, foreign);
  made.rows = sample_rows(made.problem, kRows, seed);
  std::erase_if(made.rows, [&](const Row& row) { return row.b == foreign; });
  made.exact = oracle_forward(spec, made.problem, made.rows, arithmetic);
  return made;
}

inline void check_case(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                       const PackedCase& c) {
  SCOPED_TRACE(c.what);
  const auto output = run_packed(device, kernel, spec, c.problem, c.rows);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_EQ(compare(*output, c.exact).wrong, "");
}

inline void check_random(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                         Arithmetic arithmetic, int runs, std::uint64_t seed) {
  for (int run = 0; run < runs && !testing::Test::HasFatalFailure(); ++run, ++seed)
    check_case(device, kernel, spec, random_case(spec, arithmetic, seed));
}

// Every tile of one and of two sequences, one row more and one less, and none at all.
inline void check_lengths(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                          Arithmetic arithmetic) {
  std::uint64_t seed = 1;
  for (const int length : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 256}) {
    const std::vector<std::int32_t> cu = {0, length, length, 2 * length, 2 * length + 1};
    const ProblemShape shape{
        .batch = 4, .heads = 2, .kv_heads = 1, .q_len = cu.back(), .kv_len = cu.back()};
    HostProblem problem = packed_problem(spec, shape, {.cu_q = cu, .cu_kv = cu}, ++seed);
    const std::vector<Row> rows = all_rows(problem);
    const auto output = run_packed(device, kernel, spec, problem, rows);
    ASSERT_TRUE(output.ok()) << length << ": " << render(output.error());
    EXPECT_EQ(compare(*output, oracle_forward(spec, problem, rows, arithmetic)).wrong, "")
        << length;
  }
}

// Queries without keys have O = 0 and LSE = -inf; a batch of empty sequences writes nothing.
inline void check_empty(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
  const ProblemShape shape{.batch = 3, .heads = 2, .kv_heads = 2, .q_len = 90, .kv_len = 10};
  HostProblem keyless =
      packed_problem(spec, shape, {.cu_q = {0, 40, 60, 90}, .cu_kv = {0, 0, 0, 0}}, 1);
  spoil_foreign(spec, keyless, -1);
  const std::vector<Row> rows = all_rows(keyless);
  auto output = run_packed(device, kernel, spec, keyless, rows);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_TRUE(std::ranges::all_of(output->o, [](double x) { return x == 0; }));
  EXPECT_TRUE(std::ranges::all_of(
      output->lse, [](double x) { return x == -std::numeric_limits<double>::infinity(); }));
  const HostProblem nothing =
      packed_problem(spec, shape, {.cu_q = {0, 0, 0, 0}, .cu_kv = {0, 3, 3, 10}}, 2);
  output = run_packed(device, kernel, spec, nothing, {});
  EXPECT_TRUE(output.ok()) << render(output.error());
}

// Offsets and lengths that no caller should give: nothing beside the buffers is written.
inline void check_garbage(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
  std::mt19937_64 random(5);
  const ProblemShape shape{.batch = 9, .heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 200};
  for (int run = 0; run < 20; ++run) {
    HostProblem problem = random_problem(spec, shape, static_cast<std::uint64_t>(run));
    const auto garbage = [&](std::size_t count) {
      constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                             kMost = std::numeric_limits<std::int32_t>::max();
      std::vector<std::int32_t> values(count);
      for (std::int32_t& value : values) {
        value = run % 2 == 0 ? std::uniform_int_distribution(kLeast, kMost)(random)
                             : std::uniform_int_distribution(-400, 400)(random);
      }
      return values;
    };
    problem.sequences = {.cu_q = garbage(10), .cu_kv = garbage(10), .used_q = garbage(9)};
    // Each claims all that there is.
    if (run == 1) problem.sequences = {.cu_q = {}, .cu_kv = {}};
    if (run == 1) {
      for (int i = 0; i < 10; ++i) {
        problem.sequences.cu_q.push_back(i % 2 == 0 ? 0 : 300);
        problem.sequences.cu_kv.push_back(i % 2 == 0 ? 0 : 200);
      }
    }
    const Status status = run_garbage(device, kernel, spec, problem);
    EXPECT_TRUE(status.ok()) << render(status.error());
  }
}

}  // namespace attune::packed
