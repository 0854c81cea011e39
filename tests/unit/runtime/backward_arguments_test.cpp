// The arguments of a backward launch, as a kernel would get them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>

#include "runtime/capi/arguments.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

using testing::HasSubstr;

constexpr att_shape kShape = {2, 4, 2, 3, 5};
constexpr ProblemShape kProblem = {2, 4, 2, 3, 5};
constexpr const char* kSpec =
    "attune: 1\nname: x\ndtype: bf16\nhead_dim: {qk: 16, v: 8}\nscalars: {cap: float}\n"
    "dropout: float\nsoftmax_scale: float\nsink: 0.5\npasses: [forward, backward]\ntensors:\n"
    "  doc: {dtype: int32, dims: [batch, kv_len]}\n"
    "  slope: {dtype: float32, dims: [heads], grad: true}\n"
    "mask: doc[b, kv_idx] == 1\nscore: cap * tanh((score + slope[h]) / cap)\n";

class BackwardArguments : public testing::Test {
 protected:
  BackwardArguments() {
    args_.struct_size = sizeof args_;
    args_.shape = kShape;
    int next = 0;
    const auto place = [&] { return &memory_[16 * next++]; };
    args_.q = place();
    args_.k = place();
    args_.v = place();
    args_.o = place();
    args_.lse = place();
    args_.d_o = place();
    args_.d_q = place();
    args_.d_k = place();
    args_.d_v = place();
    args_.softmax_scale = 0.5f;
    args_.dropout = 0.25f;
    args_.dropout_seed = 11;
    args_.dropout_offset = 12;
    cap_.f = 30;
    args_.scalars = &cap_;
    views_[0] = {place(), doc_sizes_, nullptr, ATT_INT32, 2};
    views_[1] = {place(), slope_sizes_, nullptr, ATT_FP32, 1};
    args_.tensor_views = views_;
    args_.tensor_view_count = 2;
  }
  Status fill() { return fill_backward_params(spec_, args_, kProblem, &params_); }
  template <typename Spoil>
  void refused(const char* message, const Spoil& spoil) {
    const att_backward_args good = args_;
    spoil();
    const Status status = fill();
    ASSERT_FALSE(status.ok()) << message;
    EXPECT_EQ(status.error().kind, ErrorKind::kBadInput);
    EXPECT_THAT(status.error().message, HasSubstr(message));
    args_ = good;
  }

  AttentionSpec spec_ = *parse_spec(kSpec, "");
  alignas(64) float memory_[512] = {};
  std::int64_t doc_sizes_[2] = {2, 5}, slope_sizes_[1] = {4};
  att_tensor views_[2];
  att_scalar cap_;
  att_backward_args args_ = {};
  att::LaunchParams params_ = {};
};

TEST_F(BackwardArguments, SayWhereDropoutsSeedLies) {
  const std::uint64_t state[2] = {7, 9};
  refused("`dropout_state` is given", [&] { args_.dropout_state = state; });
  spec_.seed_on_device = true;
  refused("`dropout_state` is null", [] {});
  args_.dropout_state = state;
  const Status status = fill();
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(dropout_state(params_), state);
  EXPECT_EQ(params_.dropout_drop_below, 64u);
}

TEST_F(BackwardArguments, BecomeParameters) {
  float* d_tensors[] = {nullptr, &memory_[400]};
  args_.d_tensors = d_tensors;
  args_.d_tensor_count = 2;
  args_.d_lse = &memory_[408];
  args_.d_o_strides = {64, 8, 24};
  args_.d_k_strides = {160, 32, 16};
  const Status status = fill();
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(params_.q, args_.q);
  EXPECT_EQ(params_.k, args_.k);
  EXPECT_EQ(params_.v, args_.v);
  EXPECT_EQ(params_.o, args_.o);
  EXPECT_EQ(params_.lse, args_.lse);
  EXPECT_EQ(params_.d_o, args_.d_o);
  EXPECT_EQ(params_.d_lse, args_.d_lse);
  EXPECT_EQ(params_.d_q, args_.d_q);
  EXPECT_EQ(params_.d_k, args_.d_k);
  EXPECT_EQ(params_.d_v, args_.d_v);
  EXPECT_EQ(params_.d_sink, nullptr);
  EXPECT_EQ(params_.d_tensors[0], nullptr);
  EXPECT_EQ(params_.d_tensors[1], d_tensors[1]);
  EXPECT_EQ(params_.tensors[0].data, views_[0].data);
  EXPECT_EQ(params_.tensors[0].size[1], 5);
  EXPECT_EQ(params_.scalars[0].as_float, 30);
  EXPECT_EQ(params_.dropout_drop_below, 64u);
  EXPECT_EQ(params_.dropout_seed, 11u);
  EXPECT_EQ(params_.dropout_offset, 12u);
  EXPECT_EQ(params_.softmax_scale, 0.5f);
  EXPECT_EQ(params_.kv_len, 5);
  const auto strides = [](const att::Strides& s) { return std::array{s.batch, s.seq, s.head}; };
  EXPECT_EQ(strides(params_.q_stride), (std::array{192ll, 64ll, 16ll}));
  EXPECT_EQ(strides(params_.o_stride), (std::array{96ll, 32ll, 8ll}));
  EXPECT_EQ(strides(params_.d_o_stride), (std::array{64ll, 8ll, 24ll}));
  EXPECT_EQ(strides(params_.d_q_stride), (std::array{192ll, 64ll, 16ll}));
  EXPECT_EQ(strides(params_.d_k_stride), (std::array{160ll, 32ll, 16ll}));
  EXPECT_EQ(strides(params_.d_v_stride), (std::array{80ll, 16ll, 8ll}));
}

TEST_F(BackwardArguments, AreChecked) {
  refused("`o` is null", [&] { args_.o = nullptr; });
  refused("`lse` is null", [&] { args_.lse = nullptr; });
  refused("`d_o` is null", [&] { args_.d_o = nullptr; });
  refused("`d_q` is null", [&] { args_.d_q = nullptr; });
  refused("`d_k` is not aligned to 16 bytes", [&] { args_.d_k = &memory_[1]; });
  refused("`d_q` lies where `q` does", [&] { args_.d_q = const_cast<void*>(args_.q); });
  refused("`d_k` lies where `d_v` does", [&] { args_.d_k = args_.d_v; });
  refused("`d_q` lies where `workspace` does", [&] { args_.workspace = args_.d_q; });
  refused("one address: `d_v`", [&] { args_.d_v_strides = {0, 16, 8}; });
  refused("`d_lse` is not aligned", [&] {
    args_.d_lse = reinterpret_cast<const float*>(reinterpret_cast<const char*>(memory_) + 2);
  });
  refused("no tensors are given", [&] { args_.tensor_views = nullptr; });
  float* d_tensors[] = {&memory_[400], nullptr};
  refused("gradient of `doc`", [&] { args_.d_tensors = d_tensors, args_.d_tensor_count = 2; });
  refused("d_tensor_count is 1", [&] { args_.d_tensors = d_tensors, args_.d_tensor_count = 1; });
}

TEST_F(BackwardArguments, WhatIsLearnedLiesApart) {
  spec_.environment.tensors[0].grad = true;
  float* d_tensors[] = {&memory_[400], &memory_[416]};
  args_.d_tensors = d_tensors;
  args_.d_tensor_count = 2;
  const Status status = fill();
  ASSERT_TRUE(status.ok()) << render(status.error());
  const auto same = [&](const char* message, const void* place) {
    d_tensors[1] = static_cast<float*>(const_cast<void*>(place));
    refused(message, [] {});
  };
  same("`d_tensors[0]` lies where `d_tensors[1]` does", d_tensors[0]);
  same("`d_v` lies where `d_tensors[1]` does", args_.d_v);
  same("`d_tensors[1]` lies where `k` does", args_.k);
  same("`d_tensors[1]` lies where `slope` does", views_[1].data);
}

// An allocator that hands out addresses in a row gives no bytes the address of what comes next.
// Kernels tell large scores from small ones by its sign.
TEST_F(BackwardArguments, AScaleIsAboveZero) {
  for (const float scale : {0.0f, -0.5f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()}) {
    args_.softmax_scale = scale;
    EXPECT_FALSE(fill().ok()) << scale;
  }
}

TEST_F(BackwardArguments, AWorkspaceOfNoBytesMayLieAnywhere) {
  args_.workspace = args_.d_q;
  ASSERT_TRUE(check_workspace(1, &args_).ok());
  EXPECT_FALSE(fill().ok());
  ASSERT_TRUE(check_workspace(0, &args_).ok());
  const Status status = fill();
  EXPECT_TRUE(status.ok()) << render(status.error());
}

TEST_F(BackwardArguments, ASinksGradientIsPassedOn) {
  args_.d_sink = &memory_[416];
  const Status status = fill();
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(params_.d_sink, &memory_[416]);
}

TEST_F(BackwardArguments, ASinksGradientIsPassedOnInOrder) {
  spec_.deterministic = true;
  args_.d_sink = &memory_[416];
  const Status status = fill();
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(params_.d_sink, &memory_[416]);
}

TEST_F(BackwardArguments, ASinksGradientNeedsASink) {
  const AttentionSpec spec =
      *parse_spec("attune: 1\nname: x\ndtype: bf16\nhead_dim: {qk: 16, v: 8}\n", "");
  args_.tensor_views = nullptr;
  args_.d_sink = &memory_[416];
  const Status status = fill_backward_params(spec, args_, kProblem, &params_);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("no sink"));
}

}  // namespace
}  // namespace attune
