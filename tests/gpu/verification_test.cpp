// What the tuner lets pass: right kernels of every family at the shape itself, and none that is
// wrong only where the shape is large.
#include <gmock/gmock.h>

#include "tests/gpu/forwarding_device.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune::gpu_test {
namespace {

// Real code that forgets the last keys of problems with so many heads.
class SpoiltKernel final : public LoadedKernel {
 public:
  SpoiltKernel(std::unique_ptr<LoadedKernel> real, int from_heads)
      : real_(std::move(real)), from_heads_(from_heads) {}
  Status launch(const att::LaunchParams& params, void* workspace,
                StreamHandle stream) const override {
    att::LaunchParams changed = params;
    if (params.batch * params.heads >= from_heads_) changed.kv_len = params.kv_len - 64;
    return real_->launch(changed, workspace, stream);
  }
  std::size_t workspace_bytes(const ProblemShape& shape) const override {
    return real_->workspace_bytes(shape);
  }

 private:
  const std::unique_ptr<LoadedKernel> real_;
  const int from_heads_;
};

// The GPU, with every kernel spoilt for problems of so many heads; the oracle's code is not.
class SpoilingDevice final : public ForwardingDevice {
 public:
  SpoilingDevice(Device& real, int from_heads) : ForwardingDevice(real), from_heads_(from_heads) {}
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    ATT_TRY(auto kernel, device_.load(spec, plan, image));
    return std::unique_ptr<LoadedKernel>(
        std::make_unique<SpoiltKernel>(std::move(kernel), from_heads_));
  }

 private:
  const int from_heads_;
};

// More heads than the CPU's oracle is asked for.
constexpr ProblemShape kLarge{
    .batch = 4, .heads = 16, .kv_heads = 8, .q_len = 4096, .kv_len = 4096};

class Verification : public testing::Test {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
  }
  static KernelBank& bank() { return KernelBank::instance(); }
};

TEST_F(Verification, RightKernelsOfEveryFamilyPassAtTheShapeItself) {
  Compiler* const compilers[] = {&bank().compiler()};
  for (const std::string& rest :
       {std::string("mask: causal\n"),
        std::string("tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\nmask: causal and "
                    "document(doc)\n"),
        std::string("mask: sliding_window(1000)\ndropout: 0.1\n")}) {
    const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 128\n" + rest);
    LocalExecutor executor(spec, kLarge, bank().device(), compilers, nullptr, 4);
    for (const KernelPlan& plan : plans_of_families(spec, kLarge, bank().device().facts())) {
      ASSERT_TRUE(executor.compile(plan).ok());
      const Status status = executor.verify(plan);
      EXPECT_TRUE(status.ok()) << to_string(plan) << ": " << render(status.error());
    }
  }
}

TEST_F(Verification, AKernelThatIsWrongOnlyAtTheWholeShapeIsFoundOut) {
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 64\n");
  SpoilingDevice device(bank().device(), static_cast<int>(kLarge.batch * kLarge.heads));
  Compiler* const compilers[] = {&bank().compiler()};
  LocalExecutor executor(spec, kLarge, device, compilers, nullptr, 4);
  for (const KernelPlan& plan : plans_of_families(spec, kLarge, device.facts())) {
    ASSERT_TRUE(executor.compile(plan).ok());
    const Status status = executor.verify(plan);
    ASSERT_FALSE(status.ok()) << to_string(plan);
    EXPECT_EQ(status.error().id, "candidate-miscompute");
    EXPECT_THAT(status.error().detail, testing::HasSubstr(to_string(kLarge)));
  }
}

}  // namespace
}  // namespace attune::gpu_test
