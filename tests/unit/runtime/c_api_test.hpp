// A runtime on the CPU without cache, a spec, a kernel and the buffers of a small launch.
#pragma once

#include <attune/attune.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace attune::c_api_test {

// A mask that reads a tensor of documents.
inline constexpr const char* kDocuments =
    "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\nmask: doc[b, kv_idx] == 1\n";

using testing::HasSubstr;

inline constexpr att_shape kShape = {1, 2, 1, 3, 5};
inline constexpr const char* kFull = "attune: 1\nname: full\ndtype: fp32\nhead_dim: 8\n";

struct alignas(64) Line {
  float values[16];
};

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    att_runtime_options options = {sizeof options, "cpu", ""};
    const att_status status = att_runtime_create(&options, &runtime_);
    ASSERT_EQ(status, ATT_OK) << att_last_error();
  }
  void TearDown() override {
    att_kernel_destroy(kernel_);
    att_spec_destroy(spec_);
    att_runtime_destroy(runtime_);
  }
  void spec(const std::string& yaml) {
    ASSERT_EQ(att_spec_from_yaml(yaml.c_str(), &spec_), ATT_OK) << att_last_error();
  }
  // Skips where the CPU has no compiler.
  void kernel(const att_shape& shape = kShape) {
    const att_status status = att_kernel_get(runtime_, spec_, &shape, &kernel_);
    if (status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
    ASSERT_EQ(status, ATT_OK) << att_last_error();
  }
  att_forward_args arguments(const att_shape& shape = kShape) {
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = shape;
    args.q = q_.data();
    args.k = k_.data();
    args.v = v_.data();
    args.o = o_.data();
    workspace_.resize(att_kernel_workspace_bytes(kernel_, &shape) / sizeof(Line) + 1);
    args.workspace = workspace_.data();
    return args;
  }

  att_runtime* runtime_ = nullptr;
  att_spec* spec_ = nullptr;
  att_kernel* kernel_ = nullptr;
  std::vector<Line> q_{32}, k_{32}, v_{32}, o_{32}, workspace_;
};

}  // namespace attune::c_api_test
