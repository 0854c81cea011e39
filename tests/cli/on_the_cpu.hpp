// What commands do with a problem that was tuned on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/cli/process.hpp"

namespace attune::cli_test {

// A problem that the CPU solves in no time, tuned into a file of its own.
class OnTheCpu : public testing::Test {
 protected:
  static Outcome tune() {
    return attune({"tune", "causal", "--shape", "heads=2,q_len=64", "--device", "cpu",
                   "--max-candidates", "2", "--json", "--cache", cache()});
  }
  static std::string cache() { return scratch_directory() + "/tuned.db"; }
  void SetUp() override {
    const Outcome outcome = tune();
    if (outcome.code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
};

}  // namespace attune::cli_test
