// The CPU device and its compiler; tests are skipped where one is missing.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "runtime/engine/engine.hpp"

namespace attune::testing_support {

class CpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto compiler = open_llvm_compiler();
    if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
    auto device = open_cpu_device();
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    compiler_ = *std::move(compiler);
    device_ = *std::move(device);
  }

  // Null after a failure.
  std::unique_ptr<LoadedKernel> load(const AttentionSpec& spec, const KernelPlan& plan,
                                     Compiler& compiler) {
    const auto built = build(spec, plan, compiler, nullptr);
    EXPECT_TRUE(built.ok()) << render(built.error());
    if (!built.ok()) return nullptr;
    auto kernel = device_->load(spec, plan, built->code.image);
    EXPECT_TRUE(kernel.ok()) << render(kernel.error());
    return kernel.ok() ? std::move(*kernel) : nullptr;
  }
  // Compiled once for all shapes of a test. Null after a failure.
  const LoadedKernel* kernel_of(const AttentionSpec& spec, const KernelPlan& plan) {
    auto& loaded = kernels_[spec_hash(spec) + to_string(plan)];
    if (!loaded) loaded = load(spec, plan, *compiler_);
    return loaded.get();
  }

  std::unique_ptr<Compiler> compiler_;
  std::unique_ptr<Device> device_;

 private:
  std::map<std::string, std::unique_ptr<LoadedKernel>> kernels_;
};

}  // namespace attune::testing_support
