// What the backward pass of packed sequences must do on any device; a test hands over how it comes
// by its kernels.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/verification/backward_kernels.hpp"
#include "tests/verification/packed.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::packed {

// Specs with layout thd that learn, after name and dtype; beside kSpecs.
inline constexpr const char* kLearningSpecs[] = {
    // By distance, a number a head, one for each sequence, and a sink's.
    "layout: thd\nhead_dim: 32\nmask: causal\ndropout: 0.1\n"
    "score: score + bias[h, max(0, min(63, q_pos - kv_idx))] + 0.02 * slope[h] * kv_idx + "
    "each[b, h]\nsink: sinks[h]\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 64], grad: true}, "
    "slope: {dtype: float32, dims: [heads], grad: true}, "
    "each: {dtype: float32, dims: [batch, heads], grad: true}, "
    "sinks: {dtype: float32, dims: [heads], grad: true}}\n",
    // One for each token.
    "layout: thd\nhead_dim: 64\nscore: score * 0.5 + keys[h, kv_idx] + queries[q_idx]\n"
    "tensors: {keys: {dtype: float32, dims: [heads, kv_len], grad: true}, "
    "queries: {dtype: float32, dims: [q_len], grad: true}}\n",
};

using verification::BackwardKernels;

// Every gradient of the problem, but those of sequence `foreign`'s rows.
inline void check_gradients(const BackwardKernels& kernels, const HostProblem& problem,
                            std::uint64_t seed, int foreign = -1) {
  const AttentionSpec& spec = kernels.spec;
  const auto made = BackwardProblem::make(kernels.device, spec, problem, kernels.forward, seed);
  ASSERT_TRUE(made.ok()) << render(made.error());
  BackwardSample sample = whole_sample(problem);
  std::erase_if(sample.queries, [&](const Row& row) { return row.b == foreign; });
  std::erase_if(sample.keys, [&](const KeyRow& row) { return row.b == foreign; });
  const auto given = (*made)->forward_output();
  ASSERT_TRUE(given.ok()) << render(given.error());
  const bool rounds_p = kernels.arithmetic == Arithmetic::kMatrixUnit;
  const BackwardOracle oracle =
      oracle_backward(spec, problem, *given, (*made)->output_gradients(), sample, rounds_p);
  for (std::size_t i = 0; i < kernels.backward.size(); ++i) {
    const auto gradients = (*made)->run(*kernels.backward[i]);
    ASSERT_TRUE(gradients.ok()) << render(gradients.error());
    EXPECT_EQ(wrong_gradient(*gradients, oracle, sample, spec, problem), "") << "kernel " << i;
  }
}

// Random problems, with NaN in all that is not of the judged sequences. Where tensors learn all
// sequences are judged, as all of them add to their gradients.
inline void check_random_gradients(const BackwardKernels& kernels, int runs, std::uint64_t seed) {
  constexpr int kMostSequences = 5, kLongest = 150;
  for (int run = 0; run < runs; ++run, ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    HostProblem problem = random_packed(kernels.spec, random, kMostSequences, kLongest);
    int foreign =
        std::uniform_int_distribution<int>(-1, static_cast<int>(problem.shape.batch) - 1)(random);
    if (kernels.spec.sink != nullptr ||
        std::ranges::any_of(kernels.spec.environment.tensors, &expr::TensorDecl::grad)) {
      foreign = -1;
    }
    spoil_foreign(kernels.spec, problem, foreign);
    check_gradients(kernels, problem, seed, foreign);
  }
}

// One tile of one and of two sequences, one row more and one less, and none at all; tiles of which
// a part has no row; queries without keys, and keys without queries.
inline void check_lengths_of_gradients(const BackwardKernels& kernels) {
  std::uint64_t seed = 1;
  for (const int length : {0, 1, 16, 64, 65, 129}) {
    SCOPED_TRACE(length);
    const std::vector<std::int32_t> cu = {0, length, length, 2 * length, 2 * length + 1};
    const ProblemShape shape{
        .batch = 4, .heads = 2, .kv_heads = 1, .q_len = cu.back(), .kv_len = cu.back()};
    ++seed;
    check_gradients(kernels, packed_problem(kernels.spec, shape, {.cu_q = cu, .cu_kv = cu}, seed),
                    seed);
  }
  const ProblemShape shape{.batch = 3, .heads = 2, .kv_heads = 2, .q_len = 90, .kv_len = 70};
  for (const HostSequences& sequences :
       {HostSequences{.cu_q = {0, 40, 60, 90}, .cu_kv = {0, 0, 0, 0}},
        HostSequences{.cu_q = {0, 0, 0, 0}, .cu_kv = {0, 3, 3, 70}},
        HostSequences{.cu_q = {0, 40, 40, 90}, .cu_kv = {0, 0, 50, 70}}}) {
    HostProblem problem = packed_problem(kernels.spec, shape, sequences, ++seed);
    spoil_foreign(kernels.spec, problem, -1);
    check_gradients(kernels, problem, seed);
  }
}

// Offsets and lengths that no caller should give: nothing behind the buffers is written.
inline void check_garbage_of_gradients(const BackwardKernels& kernels) {
  const ProblemShape shape{.batch = 9, .heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 200};
  const HostProblem problem = random_problem(kernels.spec, shape, 3);
  const auto made =
      BackwardProblem::make(kernels.device, kernels.spec, problem, kernels.forward, 3);
  ASSERT_TRUE(made.ok()) << render(made.error());
  std::mt19937_64 random(5);
  constexpr std::size_t kCounts[] = {10, 10, 9, 9};
  auto buffer = DeviceBuffer::make(kernels.device, 40 * sizeof(std::int32_t));
  ASSERT_TRUE(buffer.ok()) << render(buffer.error());
  for (int run = 0; run < 8; ++run) {
    att::LaunchParams params = (*made)->params();
    const int** const lists[] = {&params.sequences.cu_q, &params.sequences.cu_kv,
                                 &params.sequences.used_q, &params.sequences.used_kv};
    std::vector<std::int32_t> values;
    for (int list = 0; list < 4; ++list) {
      *lists[list] = static_cast<const int*>(buffer->data()) + values.size();
      for (std::size_t i = 0; i < kCounts[list]; ++i) {
        constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                               kMost = std::numeric_limits<std::int32_t>::max();
        const std::int32_t all = i % 2 == 0 ? 0 : 300;  // each sequence claims all that there is
        values.push_back(run == 0       ? all
                         : run % 2 == 0 ? std::uniform_int_distribution(kLeast, kMost)(random)
                                        : std::uniform_int_distribution(-400, 400)(random));
      }
    }
    if (run % 3 == 0) params.sequences.used_q = params.sequences.used_kv = nullptr;
    ASSERT_TRUE(
        kernels.device
            .copy_to_device(buffer->data(), values.data(), values.size() * sizeof(std::int32_t))
            .ok());
    for (const LoadedKernel* backward : kernels.backward) {
      KernelWorkspace workspace(kernels.device, shape, KernelWorkspace::Fresh::kPoison);
      const Status status = workspace.launch(*backward, params, nullptr);
      ASSERT_TRUE(status.ok()) << render(status.error());
      const auto gradients = (*made)->download();  // looks at what lies behind them
      EXPECT_TRUE(gradients.ok()) << render(gradients.error());
    }
  }
}

}  // namespace attune::packed
