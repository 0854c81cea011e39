// In every family's kernels of both passes, with running and with frozen references, a dead element
// that counts is found, and a live one that does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/mask_edge_faults.hpp"
#include "tests/gpu/planting.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1024, .kv_len = 1024};

class MaskEdges : public testing::TestWithParam<planted::EdgeSpec> {
 protected:
  static void expect_found(Pass pass) {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const AttentionSpec spec = spec_of(planted::yaml_of(GetParam()));
    const DeviceFacts& facts = bank.device().facts();
    const auto plans = plans_by_cost(spec, kShape, facts, pass);
    const auto families = families_for(spec, facts.target, pass);
    ASSERT_TRUE(plans.ok() && families.ok());
    int count = 0;
    for (const Family family : *families) {
      for (const bool frozen : {false, true}) {
        const auto plan = std::ranges::find_if(*plans, [&](const KernelPlan& p) {
          return p.family() == family && is_frozen(p) == frozen;
        });
        if (plan == plans->end()) continue;
        ++count;
        EXPECT_TRUE(are_found(planted::edge_faults(pass), spec, kShape, *plan));
      }
    }
    EXPECT_GT(count, 0) << "nothing was planted";
  }
};

TEST_P(MaskEdges, OfTheForwardPass) { expect_found(Pass::kForward); }
TEST_P(MaskEdges, OfTheBackwardPass) { expect_found(Pass::kBackward); }

INSTANTIATE_TEST_SUITE_P(Specs, MaskEdges, testing::ValuesIn(planted::kEdgeSpecs),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
