// The CPU device and its compiler; tests are skipped where one is missing.
#pragma once

#include <gtest/gtest.h>

#include <memory>

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

  std::unique_ptr<Compiler> compiler_;
  std::unique_ptr<Device> device_;
};

}  // namespace attune::testing_support
