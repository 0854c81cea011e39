// A spec that names its targets runs on no other device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

std::string spec_for(const std::string& targets) {
  return "attune: 1\nname: picky\ndtype: bf16\nhead_dim: 64\ntarget: " + targets + "\n";
}

TEST(SpecsTarget, OfAnotherDeviceIsAnError) {
  const std::string cache = scratch_directory() + "/picky.db";
  for (const char* command : {"run", "bench", "tune"}) {
    const Outcome outcome =
        attune({command, "-", "--device", "cpu", "--shape", "heads=1,q_len=64", "--cache", cache},
               {.input = spec_for("[sm_90a, sm_80]")});
    EXPECT_EQ(outcome.code, 3) << command;
    EXPECT_THAT(outcome.err, HasSubstr("`picky` is for `sm_90a` or `sm_80`, and the device is "
                                       "`cpu` [target-not-here]"))
        << command;
  }
}

TEST(SpecsTarget, OfTheDeviceIsNone) {
  const Outcome outcome =
      attune({"run", "-", "--device", "cpu", "--shape", "heads=1,q_len=64", "--cache", "none"},
             {.input = spec_for("[sm_90a, cpu]")});
  if (outcome.code == 3 && outcome.err.find("target-not-here") == std::string::npos)
    GTEST_SKIP() << "no compiler for the CPU is here";
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace attune::cli_test
