// The oracle of gradients that a GPU gets, run on cores, is the CPU's.
#include <fmt/format.h>

#include <string_view>

#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/gradient_oracle_checks.hpp"

namespace attune {
namespace {

class GradientOracleOnCores : public testing_support::CpuTest,
                              public testing::WithParamInterface<const char*> {};

TEST_P(GradientOracleOnCores, IsTheCpusOracle) {
  // Half of the specs in either type of two bytes.
  const bool odd = std::string_view(GetParam()).size() % 2 != 0;
  for (const char* dtype : {odd ? "fp16" : "bf16", "fp32"}) {
    const auto spec =
        parse_spec(fmt::format("attune: 1\nname: t\ndtype: {}\n{}", dtype, GetParam()), "t.yaml");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    SCOPED_TRACE(dtype);
    const auto oracle = GradientOracle::make(*device_, *compiler_, *spec);
    ASSERT_TRUE(oracle.ok()) << render(oracle.error());
    std::uint64_t seed = 1;
    for (const ProblemShape& shape :
         {ProblemShape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 45, .kv_len = 70},
          ProblemShape{.batch = 1, .heads = 3, .kv_heads = 3, .q_len = 40, .kv_len = 33},
          ProblemShape{.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 19}}) {
      SCOPED_TRACE(to_string(shape));
      const auto plan = default_plan(*spec, shape, device_->facts());
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      const LoadedKernel* const forward = kernel_of(*spec, *plan);
      ASSERT_NE(forward, nullptr);
      verification::check_gradient_oracle(*device_, **oracle, *spec, *forward, shape, seed++);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, GradientOracleOnCores,
                         testing::ValuesIn(verification::kGradientSpecs));

}  // namespace
}  // namespace attune
