// Faults are found by what a kernel does, not by what cannot be judged.
#include "tests/gpu/planting.hpp"

namespace attune::gpu_test {
namespace {

TEST(Planting, WhatChangesNothingIsNotFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 64\n");
  constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 300};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    // Stands in no other kernel.
    const char* const start = pass == Pass::kForward ? "normalise(result.c, o, rows, result_row);"
                                                     : "p.row_deltas[row] = delta;";
    const auto plan = legal_plans(spec, Family::kSm90a, bank.device().facts(), pass).front();
    const auto found = is_found({"nothing", {{start, start}}}, spec, kShape, plan);
    EXPECT_FALSE(found);
    EXPECT_NE(std::string(found.message()).find("nothing: passes"), std::string::npos)
        << found.message();
  }
}

}  // namespace
}  // namespace attune::gpu_test
