// att_append_*: what is refused, and with which words.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/unit/runtime/c_api_test.hpp"

namespace attune::c_api_test {
namespace {

class CApiAppend : public CApi {
 protected:
  void TearDown() override {
    att_append_kernel_destroy(append_);
    CApi::TearDown();
  }
  static att_append_options options() {
    att_append_options options = {};
    options.struct_size = sizeof options;
    options.dtype = options.cache_dtype = ATT_FP32;
    options.head_dim_qk = options.head_dim_v = 8;
    options.rope = ATT_ROPE_HALF;
    return options;
  }
  // Skips where the CPU has no compiler.
  void append_kernel(const att_append_options& options) {
    const att_status status = att_append_kernel_get(runtime_, &options, &append_);
    if (status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
    ASSERT_EQ(status, ATT_OK) << att_last_error();
  }
  // Two sequences of one and two new tokens, two pages of four rows for each.
  att_append_args append_arguments() {
    att_append_args args = {};
    args.struct_size = sizeof args;
    args.layout = ATT_PAGED;
    args.shape = {2, 2, 1, 3, 8};
    args.q = args.q_out = q_.data();
    args.k = k_.data();
    args.v = v_.data();
    args.k_cache = &cache_[0];
    args.v_cache = &cache_[32];
    args.cu_q = cu_q_;
    args.used_kv = used_kv_;
    args.page_table = table_;
    args.pages_per_sequence = 2;
    args.page_size = 4;
    args.pages = 4;
    return args;
  }

  att_append_kernel* append_ = nullptr;
  std::vector<Line> cache_{64};
  std::int32_t cu_q_[3] = {0, 1, 3}, used_kv_[2] = {5, 2}, table_[4] = {2, 0, 1, -1};
};

TEST_F(CApiAppend, OptionsAreChecked) {
  const auto refused = [&](att_status status, const char* message, const auto& spoil) {
    att_append_options spoiled = options();
    spoil(spoiled);
    EXPECT_EQ(att_append_kernel_get(runtime_, &spoiled, &append_), status) << message;
    EXPECT_THAT(att_last_error(), HasSubstr(message));
    EXPECT_EQ(append_, nullptr);
  };
  refused(ATT_BAD_INPUT, "`options.struct_size` is that of no version",
          [](auto& o) { o.struct_size = 8; });
  refused(ATT_BAD_INPUT, "`dtype` is 16", [](auto& o) { o.dtype = ATT_INT32; });
  refused(ATT_UNSUPPORTED, "new keys of fp8", [](auto& o) { o.dtype = ATT_FP8_E4M3; });
  refused(ATT_BAD_INPUT, "`head_dim_qk` is 24",
          [](auto& o) { o.cache_dtype = ATT_FP8_E4M3, o.head_dim_qk = 24; });
  refused(ATT_UNSUPPORTED, "new keys are fp32, and the cache is bf16",
          [](auto& o) { o.cache_dtype = ATT_BF16; });
  refused(ATT_BAD_INPUT, "`head_dim_qk` is 12", [](auto& o) { o.head_dim_qk = 12; });
  refused(ATT_BAD_INPUT, "`head_dim_v` is 264", [](auto& o) { o.head_dim_v = 264; });
  refused(ATT_BAD_INPUT, "`rope` is 3", [](auto& o) { o.rope = 3; });
  refused(ATT_BAD_INPUT, "`rotary_dim` is 10", [](auto& o) { o.rotary_dim = 10; });
  refused(ATT_BAD_INPUT, "`rotary_dim` is 3", [](auto& o) { o.rotary_dim = 3; });
  refused(ATT_BAD_INPUT, "`rotary_dim` is -2", [](auto& o) { o.rotary_dim = -2; });
  refused(ATT_BAD_INPUT, "nothing turns",
          [](auto& o) { o.rope = ATT_ROPE_NONE, o.rotary_dim = 8; });
  refused(ATT_BAD_INPUT, "`rope_base` is -1", [](auto& o) { o.rope_base = -1; });
  refused(ATT_BAD_INPUT, "`rope_factor` is nan", [](auto& o) { o.rope_factor = std::nan(""); });
  const att_append_options good = options();
  EXPECT_EQ(att_append_kernel_get(nullptr, &good, &append_), ATT_BAD_INPUT);
  EXPECT_EQ(att_append_kernel_get(runtime_, nullptr, &append_), ATT_BAD_INPUT);
  EXPECT_EQ(att_append_kernel_get(runtime_, &good, nullptr), ATT_BAD_INPUT);
}

TEST_F(CApiAppend, ArgumentsAreChecked) {
  append_kernel(options());
  if (IsSkipped() || HasFatalFailure()) return;
  const att_append_args good = append_arguments();
  ASSERT_EQ(att_append(append_, &good, nullptr), ATT_OK) << att_last_error();
  const std::vector<Line> before = cache_;
  const auto refused = [&](const char* message, const auto& spoil) {
    att_append_args args = good;
    spoil(args);
    EXPECT_EQ(att_append(append_, &args, nullptr), ATT_BAD_INPUT) << message;
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  const auto off = [](const void* pointer) {
    return reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(pointer) + 4);
  };
  refused("`k` is null", [](auto& a) { a.k = nullptr; });
  refused("`k_cache` is null", [](auto& a) { a.k_cache = nullptr; });
  refused("`v_cache` is null", [](auto& a) { a.v_cache = nullptr; });
  refused("`v_cache` is given, and `v` is null", [](auto& a) { a.v = nullptr; });
  refused("`q_out` is null", [](auto& a) { a.q_out = nullptr; });
  refused("`q_out` is given, and `q` is null", [](auto& a) { a.q = nullptr; });
  refused("`k_cache` is not aligned to 16", [&](auto& a) { a.k_cache = off(a.k_cache); });
  refused("`v` is not aligned to 16", [&](auto& a) { a.v = off(a.v); });
  refused("a stride is not a multiple of 16 bytes: `k`", [](auto& a) { a.k_strides = {0, 9, 8}; });
  refused("strides give two elements one address: `v_cache`",
          [](auto& a) { a.v_cache_strides = {16, 8, 8}; });
  refused("strides give two elements one address: `q`", [](auto& a) { a.q_strides = {0, 8, 8}; });
  refused("`q_out` is `q`, and its strides are others",
          [](auto& a) { a.q_out_strides = {0, 24, 8}; });
  refused("`k_cache` lies where `v_cache` does", [](auto& a) { a.v_cache = a.k_cache; });
  refused("`k_cache` lies where `k` does", [&](auto& a) { a.k = a.k_cache; });
  refused("`q_out` lies where `v` does", [&](auto& a) { a.q_out = v_.data(); });
  refused("`layout` is 4", [](auto& a) { a.layout = 4; });
  refused("`cu_q` is null", [](auto& a) { a.cu_q = nullptr; });
  refused("`used_kv` is null", [](auto& a) { a.used_kv = nullptr; });
  refused("`page_table` is null", [](auto& a) { a.page_table = nullptr; });
  refused("`positions` is not aligned to 4 bytes", [](auto& a) {
    a.positions =
        reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(a.cu_q) + 2);
  });
  refused("`cu_kv` is given", [](auto& a) { a.cu_kv = a.cu_q; });
  refused("`cu_kv` is null", [](auto& a) {
    a.layout = ATT_THD, a.page_table = nullptr;
    a.pages = a.page_size = a.pages_per_sequence = 0;
  });
  refused("`page_table` is given", [](auto& a) { a.layout = ATT_BSHD; });
  refused("`page_size` is 0", [](auto& a) { a.page_size = 0; });
  refused("`pages` is -1", [](auto& a) { a.pages = -1; });
  refused("2 pages of 4 rows have less room", [](auto& a) { a.shape.kv_len = 9; });
  refused("shape.batch is -1", [](auto& a) { a.shape.batch = -1; });
  refused("no multiple of shape.kv_heads", [](auto& a) { a.shape.kv_heads = 3; });
  const float angles[64] = {};
  refused("`sines` is null", [&](auto& a) { a.cosines = angles, a.table_positions = 1; });
  refused("`cosines` is not aligned", [&](auto& a) {
    a.cosines = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(angles) + 2);
    a.sines = angles;
  });
  refused("`table_positions` is 0", [&](auto& a) { a.cosines = a.sines = angles; });
  refused("`table_stride` is 3", [&](auto& a) {
    a.cosines = a.sines = angles;
    a.table_positions = 2, a.table_stride = 3;
  });
  EXPECT_EQ(att_append(nullptr, &good, nullptr), ATT_BAD_INPUT);
  EXPECT_EQ(att_append(append_, nullptr, nullptr), ATT_BAD_INPUT);
  EXPECT_EQ(0, std::memcmp(before.data(), cache_.data(), cache_.size() * sizeof(Line)));
  // No tokens, and no sequences: nothing is read.
  for (const att_shape& empty : {att_shape{0, 2, 1, 3, 8}, att_shape{2, 2, 1, 0, 0}}) {
    att_append_args args = {};
    args.struct_size = sizeof args;
    args.shape = empty;
    EXPECT_EQ(att_append(append_, &args, nullptr), ATT_OK) << att_last_error();
  }
}

TEST_F(CApiAppend, AnglesNeedARotation) {
  att_append_options plain = options();
  plain.rope = ATT_ROPE_NONE;
  append_kernel(plain);
  if (IsSkipped() || HasFatalFailure()) return;
  att_append_args args = append_arguments();
  EXPECT_EQ(att_append(append_, &args, nullptr), ATT_OK) << att_last_error();
  args.cosines = args.sines = q_[0].values;
  EXPECT_EQ(att_append(append_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("the kernel turns nothing"));
}

// Beyond what a double holds; nothing overflows on the way to a kernel's integers.
TEST_F(CApiAppend, BasesAndFactorsOfAnySize) {
  for (const auto& [base, factor] : {std::pair{1e-300, 1e-300}, {1e300, 1e300}, {5e-324, 1.0}}) {
    att_append_options odd = options();
    odd.rope_base = base;
    odd.rope_factor = factor;
    append_kernel(odd);
    if (IsSkipped() || HasFatalFailure()) return;
    att_append_kernel_destroy(append_);
    append_ = nullptr;
  }
}

// The handle keeps what its code needs.
TEST_F(CApiAppend, KernelOutlivesItsRuntime) {
  append_kernel(options());
  if (IsSkipped() || HasFatalFailure()) return;
  att_runtime_destroy(runtime_);
  runtime_ = nullptr;
  const att_append_args args = append_arguments();
  EXPECT_EQ(att_append(append_, &args, nullptr), ATT_OK) << att_last_error();
}

}  // namespace
}  // namespace attune::c_api_test
