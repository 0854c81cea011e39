// Batch-invariant specs on the CPU: right, and a row's bits are the same whatever is beside it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/batches.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune {
namespace {

class CpuBatchInvariant : public testing_support::CpuTest {
 protected:
  const LoadedKernel* invariant_kernel(const AttentionSpec& spec) {
    const auto plans = legal_plans(spec, Family::kCpu, device_->facts());
    EXPECT_EQ(plans.size(), 1u);  // one for all shapes
    return plans.empty() ? nullptr : kernel_of(spec, plans.front());
  }
};

// Compiling is most of what it takes: a kernel for each layout, with something of everything. fp32,
// which rounds nothing away.
TEST_F(CpuBatchInvariant, OfPackedSequences) {
  const AttentionSpec spec = batches::spec_of("fp32", "thd", batches::kSpecs[2]);
  const LoadedKernel* kernel = invariant_kernel(spec);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(batches::differs_in_batches(*device_, *kernel, spec, 80, 1), "");
  EXPECT_EQ(batches::differs_in_parts(*device_, *kernel, spec, 2), "");
  packed::check_random(*device_, *kernel, spec, Arithmetic::kVector, 3, 11);
}

TEST_F(CpuBatchInvariant, OfSequencesInPages) {
  const AttentionSpec spec = batches::spec_of("fp32", "paged", batches::kSpecs[1]);
  const LoadedKernel* kernel = invariant_kernel(spec);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(batches::differs_in_batches(*device_, *kernel, spec, 60, 3), "");
  EXPECT_EQ(batches::differs_in_parts(*device_, *kernel, spec, 4), "");
  paged::check_cases(*device_, *kernel, spec, paged::paged_cases(spec, Arithmetic::kVector, 1, 12));
}

TEST_F(CpuBatchInvariant, OfATreeOfDraftedTokens) {
  const AttentionSpec spec = batches::spec_of("fp32", "paged", batches::kTree);
  const LoadedKernel* kernel = invariant_kernel(spec);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(batches::differs_in_batches(*device_, *kernel, spec, 40, 5), "");
}

TEST_F(CpuBatchInvariant, OfABatchOfOneLength) {
  const AttentionSpec spec = batches::spec_of("fp32", "bhsd", batches::kSpecs[0]);
  const LoadedKernel* kernel = invariant_kernel(spec);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(batches::differs_in_batches(*device_, *kernel, spec, 20, 6), "");
  EXPECT_EQ(batches::differs_in_parts(*device_, *kernel, spec, 7), "");
}

}  // namespace
}  // namespace attune
