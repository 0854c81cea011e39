// What tests of Hopper's own backward plans begin with: a spec, and the forward plan that makes the
// O and LSE that come in.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {

// What follows name and dtype in a spec.
struct NamedLines {
  const char* name;
  const char* lines;
};
inline void PrintTo(const NamedLines& c, std::ostream* out) { *out << c.name; }

class HopperBackward : public testing::Test {
 protected:
  // `typical`: what the forward plan is chosen for.
  HopperBackward(const std::string& lines, const ProblemShape& typical)
      : spec_(spec_of("name: t\ndtype: bf16\n" + lines)), typical_(typical) {}
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const DeviceFacts& facts = bank.device().facts();
    if (facts.target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
    forward_ = plans_by_cost(spec_, typical_, facts, Pass::kForward).value().front();
  }

  const AttentionSpec spec_;
  KernelPlan forward_;

 private:
  const ProblemShape typical_;
};

}  // namespace attune::gpu_test
