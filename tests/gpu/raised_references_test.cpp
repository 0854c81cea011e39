// Kernels whose references rise as an item goes are found out when what was summed before does not
// go with them. A large scale spreads scores over hundreds of powers of two, as heavy tails do.
#include <gtest/gtest.h>

#include <string>

#include "generator/plan/plan.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/gpu/raised_reference_faults.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 900, .kv_len = 1472};

void expect_found(const std::vector<planted::Fault>& faults, const std::string& lines,
                  const char* plan_text, const ProblemShape& shape = kShape) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "no Hopper GPU";
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nsoftmax_scale: 20.0\n" + lines);
  const auto plan = parse_plan(std::string("sm90a forward sm_90a ") + plan_text);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  EXPECT_TRUE(are_found(faults, spec, shape, *plan));
}

TEST(RaisedReferences, OfOnePieceAreFoundOut) {
  const auto faults = planted::raised_reference_faults();
  expect_found(faults, "head_dim: 128\n", "w2 k64 s4 b1 qreg c1 persistent g1 frozen tma");
  expect_found(faults, "head_dim: 128\nmask: causal\n", "w3 k64 s4 b1 c1 longest g16 frozen tma");
  expect_found(faults, "head_dim: 256\n", "w2 k64 s2 b1 c1 persistent g1 frozen tma");
}

TEST(RaisedReferences, OfTwoPiecesAreFoundOut) {
  expect_found({planted::kUnscaledPiece}, "head_dim: 64\n",
               "w3 k128 s4 b2 c1 persistent g1 frozen tma");
}

TEST(RaisedReferences, OfWarpgroupsThatWaitForTheOthersLookAreFoundOut) {
  expect_found({planted::kUnscaledPiece}, "head_dim: 64\nmask: causal\n",
               "w3 k128 s4 b2 c1 longest g32 frozen tma",
               {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 320, .kv_len = 2176});
}

}  // namespace
}  // namespace attune::gpu_test
