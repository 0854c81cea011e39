// Faults planted in a plan's kernel on the GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::gpu_test {

// The plan's kernel with the fault in it.
Result<std::unique_ptr<LoadedKernel>> kernel_with(const planted::Fault& fault,
                                                  const AttentionSpec& spec,
                                                  const KernelPlan& plan);

// Whether what the tuner runs before it times the plan finds each of the faults in it.
testing::AssertionResult are_found(const std::vector<planted::Fault>& faults,
                                   const AttentionSpec& spec, const ProblemShape& shape,
                                   const KernelPlan& plan);
testing::AssertionResult is_found(const planted::Fault& fault, const AttentionSpec& spec,
                                  const ProblemShape& shape, const KernelPlan& plan);

}  // namespace attune::gpu_test
