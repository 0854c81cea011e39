// Gradients of the CPU family where scores, keys or dO are of magnitudes that kernels get wrong
// first.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/hostile_gradient_checks.hpp"

namespace attune {
namespace {

constexpr ProblemShape kShape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 90, .kv_len = 131};

struct Case {
  const char* name;
  const char* lines;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
constexpr Case kCases[] = {{"fp32_d64", "dtype: fp32\nhead_dim: 64\n"},
                           {"fp32_d128_causal", "dtype: fp32\nhead_dim: 128\nmask: causal\n"},
                           {"bf16_d64_causal", "dtype: bf16\nhead_dim: 64\nmask: causal\n"},
                           {"bf16_d128", "dtype: bf16\nhead_dim: 128\n"},
                           {"fp16_d64_causal", "dtype: fp16\nhead_dim: 64\nmask: causal\n"},
                           {"fp16_d128", "dtype: fp16\nhead_dim: 128\n"}};

class CpuHostileGradients : public testing_support::CpuTest,
                            public testing::WithParamInterface<Case> {};

// dQ in a launch of its own, added up beside dK and dV, and that in parts.
constexpr const char* kPlans[] = {"cpu backward cpu t128 s64 u8 c1 v32",
                                  "cpu backward cpu t128 s64 u8 c1 v32 heads",
                                  "cpu backward cpu t64 s64 u8 c1 v32 heads parts"};

TEST_P(CpuHostileGradients, AreTheDerivative) {
  const auto spec = parse_spec(std::string("attune: 1\nname: t\n") + GetParam().lines, "t.yaml");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = default_plan(*spec, kShape, device_->facts());
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  const LoadedKernel* const forward = kernel_of(*spec, *plan);
  ASSERT_NE(forward, nullptr);
  std::vector<const LoadedKernel*> backward;
  for (const char* text : kPlans) {
    const auto own = parse_plan(text);
    ASSERT_TRUE(own.ok()) << render(own.error());
    backward.push_back(kernel_of(*spec, *own));
    ASSERT_NE(backward.back(), nullptr);
  }
  for (const hostile::Hostility& hostility : hostile::kHostilities) {
    SCOPED_TRACE(hostility.name);
    hostile::check_gradients({*device_, *spec, *forward, backward, Arithmetic::kVector}, hostility,
                             kShape, 11);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuHostileGradients, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune
