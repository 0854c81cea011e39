// Runs a kernel on a problem and judges what comes out by the oracle.
#pragma once

#include <gtest/gtest.h>

#include "runtime/reference/oracle.hpp"
#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {

// Rows judged at most; the oracle does two multiplications and an exponential for each of their
// keys in fp64, so this keeps a case of 4096 keys at some tens of milliseconds.
inline constexpr int kMaxRows = 256;

// Launches every plan twice on outputs filled with NaN, every buffer followed by a canary: right by
// the oracle and the same to the bit both times, nothing written behind a buffer.
testing::AssertionResult judge(const AttentionSpec& spec, const HostProblem& problem,
                               const std::vector<KernelPlan>& plans);

}  // namespace attune::gpu_test
