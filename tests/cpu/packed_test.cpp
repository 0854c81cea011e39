// Packed sequences on the CPU family.
#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/packed_checks.hpp"

namespace attune {
namespace {

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

class CpuPacked : public testing_support::CpuTest {
 protected:
  // Calls check(kernel, spec) for every spec, in one dtype after the other, and two plans of each:
  // the cheapest, and the first or the middle one in turn.
  template <typename Check>
  void for_each_kernel(const Check& check) {
    int number = 0;
    for (const char* lines : packed::kSpecs) {
      const char* const dtypes[] = {"fp32", "bf16", "fp16"};
      const std::string yaml =
          fmt::format("attune: 1\nname: t\ndtype: {}\n{}", dtypes[number++ % 3], lines);
      SCOPED_TRACE(yaml);
      const auto spec = parse_spec(yaml, "");
      ASSERT_TRUE(spec.ok()) << render(spec.error());
      const std::vector<KernelPlan> plans = legal_plans(*spec, Family::kCpu, device_->facts());
      const auto cheapest = default_plan(*spec, kTypical, device_->facts());
      ASSERT_TRUE(cheapest.ok()) << render(cheapest.error());
      const std::size_t other = number % 2 == 0 ? 0 : plans.size() / 2;
      for (const KernelPlan& plan : {*cheapest, plans[other]}) {
        SCOPED_TRACE(to_string(plan));
        const LoadedKernel* kernel = kernel_of(*spec, plan);
        ASSERT_NE(kernel, nullptr);
        check(*kernel, *spec);
      }
    }
  }
};

// One test: compiling the kernels is most of what it takes.
TEST_F(CpuPacked, EveryKernelOnEveryKindOfBatch) {
  std::uint64_t seed = 100;
  for_each_kernel([&](const LoadedKernel& kernel, const AttentionSpec& spec) {
    packed::check_random(*device_, kernel, spec, Arithmetic::kVector, 4, seed += 1000);
    packed::check_lengths(*device_, kernel, spec, Arithmetic::kVector);
    if (spec.sink == nullptr) packed::check_empty(*device_, kernel, spec);
    packed::check_garbage(*device_, kernel, spec);
  });
}

}  // namespace
}  // namespace attune
