// A cache of fp8 by the C interface: new keys are appended to it, attention reads what was written,
// and scales are checked.
#include <attune/attune.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace attune {
namespace {

using testing::HasSubstr;

constexpr int kDim = 16, kKeys = 5, kPages = 4, kPageSize = 4, kHeads = 2;
constexpr const char* kSpec =
    "attune: 1\nname: t\ndtype: bf16\nkv_dtype: fp8_e4m3\nhead_dim: 16\nlayout: paged\n";

std::uint16_t bf16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

class CpuFp8Api : public testing::Test {
 protected:
  void SetUp() override {
    const att_runtime_options options = {sizeof options, "cpu", ""};
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
    ASSERT_EQ(att_spec_from_yaml(kSpec, &spec_), ATT_OK) << att_last_error();
    if (att_kernel_get(runtime_, spec_, &shape_, &kernel_) == ATT_UNAVAILABLE) {
      GTEST_SKIP() << att_last_error();
    }
    ASSERT_NE(kernel_, nullptr) << att_last_error();
  }
  void TearDown() override {
    att_kernel_destroy(kernel_);
    att_append_kernel_destroy(append_);
    att_spec_destroy(spec_);
    att_runtime_destroy(runtime_);
  }
  // Five keys, all new, of one sequence, which has the pages 2 and 1.
  att_append_args append_arguments() {
    att_append_args args = {};
    args.struct_size = sizeof args;
    args.layout = ATT_PAGED;
    args.shape = {1, kHeads, kHeads, kKeys, 8};
    args.k = new_k_, args.v = new_v_;
    args.k_cache = k_cache_, args.v_cache = v_cache_;
    args.cu_q = new_tokens_, args.used_kv = used_kv_;
    set_pages(args);
    return args;
  }
  att_forward_args arguments() {
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = shape_;
    args.q = q_, args.k = k_cache_, args.v = v_cache_, args.o = o_, args.lse = lse_;
    workspace_.resize(att_kernel_workspace_bytes(kernel_, &shape_) + 64);
    args.workspace = reinterpret_cast<void*>(
        (reinterpret_cast<std::uintptr_t>(workspace_.data()) + 63) / 64 * 64);
    args.cu_q = one_query_, args.used_kv = used_kv_;
    set_pages(args);
    return args;
  }
  template <typename Args>
  void set_pages(Args& args) {
    args.page_table = table_;
    args.pages_per_sequence = 2, args.page_size = kPageSize, args.pages = kPages;
    args.k_scales = k_scales_, args.v_scales = v_scales_;
    args.k_scale_page_stride = args.v_scale_page_stride = kHeads;
    args.k_scale_head_stride = args.v_scale_head_stride = 1;
  }

  const att_shape shape_ = {1, kHeads, kHeads, 1, 8};
  att_runtime* runtime_ = nullptr;
  att_spec* spec_ = nullptr;
  att_kernel* kernel_ = nullptr;
  att_append_kernel* append_ = nullptr;
  std::vector<std::byte> workspace_;
  alignas(16) std::uint16_t q_[kHeads * kDim] = {}, o_[kHeads * kDim] = {};
  alignas(16) std::uint16_t new_k_[kKeys * kHeads * kDim] = {}, new_v_[kKeys * kHeads * kDim] = {};
  alignas(16) std::uint8_t k_cache_[kPages * kPageSize * kHeads * kDim] = {};
  alignas(16) std::uint8_t v_cache_[kPages * kPageSize * kHeads * kDim] = {};
  float lse_[kHeads] = {};
  std::int32_t new_tokens_[2] = {0, kKeys}, one_query_[2] = {0, 1}, used_kv_[1] = {kKeys};
  std::int32_t table_[2] = {2, 1};
  // Powers of two, so that what is appended comes back to the bit.
  float k_scales_[kPages * kHeads] = {9, 9, 0.25f, 2, 0.5f, 4, 9, 9};
  float v_scales_[kPages * kHeads] = {9, 9, 8, 0.125f, 1, 16, 9, 9};
};

TEST_F(CpuFp8Api, WhatIsAppendedIsRead) {
  if (IsSkipped() || HasFatalFailure()) return;
  att_append_options options = {};
  options.struct_size = sizeof options;
  options.dtype = ATT_BF16;
  options.cache_dtype = ATT_FP8_E4M3;
  options.head_dim_qk = options.head_dim_v = kDim;
  ASSERT_EQ(att_append_kernel_get(runtime_, &options, &append_), ATT_OK) << att_last_error();
  for (int key = 0; key < kKeys; ++key) {
    for (int h = 0; h < kHeads; ++h) {
      // Queries are zero: O is the mean of the values.
      for (int i = 0; i < kDim; ++i) {
        new_v_[(key * kHeads + h) * kDim + i] = bf16(static_cast<float>(key + h + 1) * 2);
      }
    }
  }
  new_v_[3] = bf16(1e30f);  // key 0, head 0, column 3: 448 times the scale 1 of page 2
  const att_append_args append = append_arguments();
  ASSERT_EQ(att_append(append_, &append, nullptr), ATT_OK) << att_last_error();
  EXPECT_EQ(v_cache_[2 * kPageSize * kHeads * kDim + 3], 0x7e);
  const att_forward_args args = arguments();
  ASSERT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kDim; ++i) {
      const double mean = h == 0 && i == 3 ? (448 + 4 + 6 + 8 + 10) / 5.0 : 2.0 * (3 + h);
      EXPECT_NEAR(from_bf16(o_[h * kDim + i]), mean, mean / 128) << h << ' ' << i;
    }
    EXPECT_NEAR(lse_[h], std::log(5.0), 1e-5);
  }
}

TEST_F(CpuFp8Api, ScalesAreChecked) {
  if (IsSkipped() || HasFatalFailure()) return;
  att_spec_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(att_spec_describe(spec_, &info), ATT_OK);
  EXPECT_EQ(info.dtype, ATT_BF16);
  EXPECT_EQ(info.kv_dtype, ATT_FP8_E4M3);
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = arguments();
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT) << message;
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`k_scales` is null, and it has strides", [](auto& a) { a.k_scales = nullptr; });
  refused("the page stride of `v_scales` is -1", [](auto& a) { a.v_scale_page_stride = -1; });
  refused("the head stride of `k_scales` is -2", [](auto& a) { a.k_scale_head_stride = -2; });
  refused("`v_scales` is not aligned to 4 bytes", [](auto& a) {
    a.v_scales = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(a.v_scales) + 2);
  });
  refused("a stride is not a multiple of 16 bytes: `k`",
          [](auto& a) { a.k_strides = {128, 40, 8}; });
  att_kernel* backward = nullptr;
  EXPECT_EQ(att_kernel_get_for_pass(runtime_, spec_, &shape_, ATT_PASS_BACKWARD, &backward),
            ATT_UNSUPPORTED);
  EXPECT_THAT(att_last_error(), HasSubstr("there is no backward pass"));
  // Of a cache in the dtype of the queries.
  att_spec_destroy(spec_);
  att_kernel_destroy(kernel_);
  kernel_ = nullptr;
  ASSERT_EQ(
      att_spec_from_yaml("attune: 1\nname: t\ndtype: bf16\nhead_dim: 16\nlayout: paged\n", &spec_),
      ATT_OK);
  ASSERT_EQ(att_kernel_get(runtime_, spec_, &shape_, &kernel_), ATT_OK) << att_last_error();
  refused("K and V have the dtype of the queries", [](auto&) {});
}

}  // namespace
}  // namespace attune
