// Runs kernels on a problem and judges what comes out by the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "runtime/reference/oracle.hpp"
#include "tests/gpu/kernel_bank.hpp"

namespace attune {
struct Gradients;
}

namespace attune::gpu_test {

// Rows judged at most; the oracle does two multiplications and an exponential for each of their
// keys in fp64, so this keeps a case of 4096 keys at some tens of milliseconds.
inline constexpr int kMaxRows = 256;

// Launches every plan on outputs filled with NaN, every buffer followed by a canary: right by the
// oracle and the same to the bit each time, nothing written behind a buffer.
testing::AssertionResult judge(const AttentionSpec& spec, const HostProblem& problem,
                               const std::vector<KernelPlan>& plans, int launches = 2);

// The same of backward plans and the gradients of random numbers, which are the same to the bit
// where the spec is deterministic. `forward` makes the O and LSE that come in.
testing::AssertionResult judge_backward(const AttentionSpec& spec, const ProblemShape& shape,
                                        std::uint64_t seed, const KernelPlan& forward,
                                        const std::vector<KernelPlan>& plans, int launches = 1);

// Gradient by gradient, to the bit.
bool is_same(const Gradients& a, const Gradients& b);

}  // namespace attune::gpu_test
