// Gradients of every family where scores, keys or dO are of magnitudes that fast kernels get wrong
// first. tests/unit/runtime/hostile_limits_test.cpp is about the limits that they are held to.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "tests/gpu/canary_device.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/hostile_gradient_checks.hpp"

namespace attune::gpu_test {
namespace {

using hostile::Hostility;
using Parameters = std::tuple<const char*, int, const char*, Hostility>;

// No tile divides the lengths, and every row of a causal mask has keys.
constexpr ProblemShape kShape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 200, .kv_len = 261};
constexpr const char* kTypes[] = {"bf16", "fp16"};
constexpr int kHeadDims[] = {64, 128};
constexpr const char* kMasks[] = {"true", "causal"};

std::string name_of(const Parameters& parameters) {
  const auto& [dtype, dim, mask, hostility] = parameters;
  return fmt::format("{}_{}_d{}_{}", hostility.name, dtype, dim, mask);
}

AttentionSpec spec_of(const Parameters& parameters) {
  return gpu_test::spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: {}\nmask: {}\n",
                                       std::get<0>(parameters), std::get<1>(parameters),
                                       std::get<2>(parameters)));
}

BackwardPlans plans_of(const AttentionSpec& spec) {
  return cheapest_of_both_passes(spec, kPlanShape, KernelBank::instance().device().facts());
}

class HostileGradients : public testing::TestWithParam<Parameters> {
 protected:
  static void SetUpTestSuite() {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    std::vector<Request> requests;
    for (const char* dtype : kTypes) {
      for (const int dim : kHeadDims) {
        for (const char* mask : kMasks) {
          if (std::ranges::none_of(hostile::kHostilities, [&](const Hostility& hostility) {
                return will_run("All/HostileGradients", name_of({dtype, dim, mask, hostility}));
              })) {
            continue;
          }
          const AttentionSpec spec = spec_of({dtype, dim, mask, hostile::kHostilities[0]});
          std::ranges::copy(requests_of(spec, plans_of(spec)), std::back_inserter(requests));
        }
      }
    }
    bank.prepare(requests);
  }
};

TEST_P(HostileGradients, AreTheDerivative) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(GetParam());
  const BackwardPlans plans = plans_of(spec);
  const auto forward = bank.get(spec, plans.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  std::vector<std::shared_ptr<LoadedKernel>> owned;
  std::vector<const LoadedKernel*> backward;
  std::string order;
  for (const KernelPlan& plan : plans.backward) {
    const auto kernel = bank.get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << to_string(plan) << ": " << render(kernel.error());
    owned.push_back(*kernel);
    backward.push_back(owned.back().get());
    order += to_string(plan) + "\n";
  }
  SCOPED_TRACE("the kernels:\n" + order);
  CanaryDevice device(bank.device());
  hostile::check_gradients({device, spec, **forward, backward, Arithmetic::kMatrixUnit},
                           std::get<3>(GetParam()), kShape, 11);
  EXPECT_EQ(device.damage(), "");
}

INSTANTIATE_TEST_SUITE_P(All, HostileGradients,
                         testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kHeadDims),
                                          testing::ValuesIn(kMasks),
                                          testing::ValuesIn(hostile::kHostilities)),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace attune::gpu_test
