// Packed sequences, every family that serves them.
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/packed_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kTypical{
    .batch = 8, .heads = 4, .kv_heads = 2, .q_len = 2000, .kv_len = 2000};

class GpuPacked : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  }

  // Calls check(device, kernel, spec) for the cheapest plan of every family and spec, and for some
  // others.
  template <typename Check>
  void for_each_kernel(const Check& check) {
    KernelBank& bank = KernelBank::instance();
    std::vector<Request> requests;
    for (const char* lines : packed::kSpecs) {
      const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}", GetParam(), lines));
      for (const KernelPlan& plan : plans_of_families(spec, kTypical, bank.device().facts())) {
        requests.push_back({spec, plan});
        const std::vector<KernelPlan> legal =
            legal_plans(spec, plan.family(), bank.device().facts());
        for (const std::size_t i : {legal.size() / 3, 2 * legal.size() / 3}) {
          if (!bank.gives_up(spec, legal[i])) requests.push_back({spec, legal[i]});
        }
      }
    }
    EXPECT_FALSE(requests.empty());
    bank.prepare(requests);
    for (const auto& [spec, plan] : requests) {
      SCOPED_TRACE(fmt::format("{}\n{}", canonical_text(spec), to_string(plan)));
      const auto kernel = bank.get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      check(bank.device(), **kernel, spec);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(GpuPacked, RandomBatches) {
  std::uint64_t seed = 100;
  for_each_kernel([&](Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
    // The oracle of one takes the host longer than all else.
    packed::check_random(device, kernel, spec, Arithmetic::kMatrixUnit, 2, seed += 1000);
  });
}

TEST_P(GpuPacked, LengthsAroundATile) {
  for_each_kernel([&](Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
    packed::check_lengths(device, kernel, spec, Arithmetic::kMatrixUnit);
  });
}

TEST_P(GpuPacked, SequencesWithoutKeysAndWithoutQueries) {
  for_each_kernel([&](Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
    if (spec.sink == nullptr) packed::check_empty(device, kernel, spec);
  });
}

TEST_P(GpuPacked, OffsetsOfNoCallerStayInside) {
  for_each_kernel([&](Device& device, const LoadedKernel& kernel, const AttentionSpec& spec) {
    packed::check_garbage(device, kernel, spec);
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuPacked, testing::Values("bf16", "fp16", "fp32"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace attune::gpu_test
