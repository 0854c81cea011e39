// The arguments of a launch: what is refused, and what is right although it looks odd.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "tests/unit/runtime/c_api_test.hpp"

namespace attune::c_api_test {
namespace {

TEST_F(CApi, ShapesAreChecked) {
  spec(kFull);
  const struct {
    att_shape shape;
    const char* message;
  } bad[] = {{{-1, 2, 1, 3, 5}, "shape.batch is -1"},
             {{1, 3, 2, 3, 5}, "no multiple"},
             {{1, 2, 1, -1, 5}, "shape.q_len is -1"},
             {{1, 2, 1, 3, int64_t{1} << 40}, "shape.kv_len"},
             {{1, 2, 1, 3, (int64_t{1} << 28) + 1}, "shape.kv_len is 268435457"},
             {{1, 2, 1, 3, 0}, "over no keys O is 0"},
             {{0, 0, 1, 3, 5}, "shape.heads is 0"},
             {{65536, 4096, 1, int64_t{1} << 28, 1}, "too large for one launch: o has"}};
  for (const auto& [shape, message] : bad) {
    EXPECT_EQ(att_kernel_get(runtime_, spec_, &shape, &kernel_), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
    EXPECT_EQ(kernel_, nullptr);
  }
}

TEST_F(CApi, LaunchArgumentsAreChecked) {
  spec(
      "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nscalars: {slope: float}\ndropout: float\n"
      "tensors: {bias: {dtype: float32, dims: [heads]}}\nscore: score * slope + bias[h]\n");
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  const att_scalar scalars[16] = {};
  const void* tensors[8] = {q_.data()};
  att_forward_args good = arguments();
  good.scalars = scalars;
  good.tensors = tensors;
  ASSERT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = good;
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`k` is null", [](auto& args) { args.k = nullptr; });
  refused("`q` is not aligned",
          [&](auto& args) { args.q = reinterpret_cast<const char*>(args.q) + 4; });
  refused("a stride is not a multiple of 16 bytes: `v`",
          [](auto& args) { args.v_strides = {40, 9, 8}; });
  refused("`scalars` is null", [](auto& args) { args.scalars = nullptr; });
  refused("no tensors are given", [](auto& args) { args.tensors = nullptr; });
  refused("dropout is 1", [](auto& args) { args.dropout = 1; });
  refused("dropout is nan", [](auto& args) { args.dropout = NAN; });
  refused("steps of 1/256", [](auto& args) { args.dropout = 0.001f; });
  refused("struct_size", [](auto& args) { args.struct_size = 8; });
  refused("`lse` is not aligned to 4 bytes", [&](auto& args) {
    args.lse = reinterpret_cast<float*>(reinterpret_cast<char*>(workspace_.data()) + 2);
  });
  const void* missing[8] = {};
  refused("`bias` is null", [&](auto& args) { args.tensors = missing; });
  const void* written[8] = {o_.data()};
  refused("`o` lies where `bias` does", [&](auto& args) { args.tensors = written; });
}

TEST_F(CApi, WhatIsWrittenLiesApart) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  const att_forward_args good = arguments();
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = good;
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`o` lies where `q` does", [&](auto& args) { args.o = q_.data(); });
  refused("`o` lies where `lse` does", [&](auto& args) { args.lse = static_cast<float*>(args.o); });
  refused("`workspace` lies where `v` does", [&](auto& args) { args.workspace = v_.data(); });
  att_forward_args same_inputs = good;
  same_inputs.v = same_inputs.k;
  EXPECT_EQ(att_forward(kernel_, &same_inputs, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApi, WhereDropoutsSeedLiesIsChecked) {
  spec("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\ndropout: {p: 0.5, seed: device}\n");
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  alignas(8) const std::uint64_t state[3] = {7, 9};
  att_forward_args args = arguments();
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`dropout_state` is null"));
  args.dropout_state =
      reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const char*>(state) + 4);
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`dropout_state` is not aligned to 8 bytes"));
  args.dropout_state = state;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApi, ASeedOfTheLaunchLiesNowhere) {
  spec("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\ndropout: 0.5\n");
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  const std::uint64_t state[2] = {7, 9};
  att_forward_args args = arguments();
  args.dropout_state = state;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`dropout_state` is given"));
}

TEST_F(CApi, AShapeThatCannotBeHasNoWorkspace) {
  spec(kDocuments);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_GT(att_kernel_workspace_bytes(kernel_, &kShape), 0u);
  const att_shape most = {65536, 4096, 1, int64_t{1} << 28, int64_t{1} << 28};
  EXPECT_EQ(att_kernel_workspace_bytes(kernel_, &most), SIZE_MAX);
  EXPECT_THAT(att_last_error(), HasSubstr("too large for one launch"));
  // A pair of 8 bytes for each 64 of 2^44 documents.
  const att_shape many_keys = {65536, 1, 1, 1, int64_t{1} << 28};
  EXPECT_EQ(att_kernel_workspace_bytes(kernel_, &many_keys), std::size_t{1} << 41);
}

TEST_F(CApi, MoreWorkThanAKernelCanNumberIsRefused) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  // The same keys and values for all; o would be 2^44 bytes.
  att_forward_args args = arguments();
  args.shape = {65536, 4096, 1, 2048, 1};
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("launch-too-large"));
}

TEST_F(CApi, AnEmptyBatchIsDoneAtOnce) {
  spec(kDocuments);
  for (const att_shape& shape :
       {att_shape{0, 2, 1, 3, 5}, att_shape{1, 2, 1, 0, 5}, att_shape{0, 2, 1, 0, 0}}) {
    att_kernel_destroy(kernel_);
    kernel_ = nullptr;
    kernel(shape);
    if (IsSkipped() || HasFatalFailure()) return;
    EXPECT_EQ(att_kernel_workspace_bytes(kernel_, &shape), 0u);
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = shape;
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
  }
}

constexpr const char* kPacked = "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nlayout: thd\n";

TEST_F(CApi, PackedSequencesNeedTheirOffsets) {
  spec(kPacked);
  const att_shape shape = {2, 2, 1, 5, 6};
  kernel(shape);
  if (IsSkipped() || HasFatalFailure()) return;
  const int32_t cu_q[] = {0, 3, 5}, cu_kv[] = {0, 1, 6};
  att_forward_args good = arguments(shape);
  good.cu_q = cu_q;
  good.cu_kv = cu_kv;
  good.workspace_bytes = att_kernel_workspace_bytes(kernel_, &shape);
  EXPECT_GT(good.workspace_bytes, 0u);
  ASSERT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = good;
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`cu_q` is null", [](auto& args) { args.cu_q = nullptr; });
  refused("`cu_kv` is null", [](auto& args) { args.cu_kv = nullptr; });
  const auto odd = [&] {
    return reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(cu_q) + 2);
  };
  refused("`used_kv` is not aligned to 4 bytes", [&](auto& args) { args.used_kv = odd(); });
  refused("workspace_bytes is 8", [](auto& args) { args.workspace_bytes = 8; });
  // A program built against a header without these fields.
  refused("`cu_q` is null",
          [](auto& args) { args.struct_size = offsetof(att_forward_args, cu_q); });
  // The batch stride is never stepped.
  att_forward_args strided = good;
  strided.q_strides = strided.o_strides = {0, 16, 8};
  EXPECT_EQ(att_forward(kernel_, &strided, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApi, OnlyPackedSequencesHaveOffsets) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  const int32_t cu[] = {0, 3};
  att_forward_args args = arguments();
  args.used_kv = cu;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`used_kv` is given, and the spec's layout is bshd"));
}

constexpr const char* kPaged = "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nlayout: paged\n";

// Two sequences of three and of one key, in a cache of four pages of two rows.
TEST_F(CApi, PagedSequencesNeedLengthsAndPages) {
  spec(kPaged);
  const att_shape shape = {2, 2, 1, 5, 4};
  kernel(shape);
  if (IsSkipped() || HasFatalFailure()) return;
  const int32_t cu_q[] = {0, 3, 5}, used_kv[] = {3, 1}, table[] = {2, 0, 3, -1};
  att_forward_args good = arguments(shape);
  good.cu_q = cu_q;
  good.used_kv = used_kv;
  good.page_table = table;
  good.pages_per_sequence = 2;
  good.page_size = 2;
  good.pages = 4;
  good.workspace_bytes = att_kernel_workspace_bytes(kernel_, &shape);
  ASSERT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = good;
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT) << message;
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`cu_q` is null", [](auto& args) { args.cu_q = nullptr; });
  refused("`used_kv` is null", [](auto& args) { args.used_kv = nullptr; });
  refused("`page_table` is null", [](auto& args) { args.page_table = nullptr; });
  refused("`cu_kv` is given, and the spec's layout is paged",
          [&](auto& args) { args.cu_kv = cu_q; });
  refused("`page_table` is not aligned to 4 bytes", [&](auto& args) {
    args.page_table = reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(table) + 2);
  });
  refused("`page_size` is 0, not in 1 to", [](auto& args) { args.page_size = 0; });
  refused("`pages` is -1, not in 1 to", [](auto& args) { args.pages = -1; });
  refused("`pages_per_sequence` is 0, not in 1 to",
          [](auto& args) { args.pages_per_sequence = 0; });
  refused("2 pages of 2 rows have less room", [](auto& args) { args.shape.kv_len = 5; });
  refused("a stride is not a multiple of 16 bytes: `k`",
          [](auto& args) { args.k_strides = {17, 8, 8}; });
  refused("`v` is null", [](auto& args) { args.v = nullptr; });
  // A program built against a header without these fields.
  refused("`pages_per_sequence` is 0",
          [](auto& args) { args.struct_size = offsetof(att_forward_args, page_table); });
  // Heads first, and a V that is a part of K.
  att_forward_args strided = good;
  strided.k_strides = strided.v_strides = {16, 8, 16};
  strided.v = strided.k;
  EXPECT_EQ(att_forward(kernel_, &strided, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApi, WhereVIsAPartOfKLaunchesTakeKAlone) {
  spec("attune: 1\nname: x\ndtype: fp32\nhead_dim: {qk: 16, v: 8}\nv_in_k: true\n");
  att_spec_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(att_spec_describe(spec_, &info), ATT_OK);
  EXPECT_EQ(info.v_in_k, 1);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  for (std::size_t i = 0; i < k_.size(); ++i) {
    for (int j = 0; j < 16; ++j) k_[i].values[j] = static_cast<float>(i + 1) + 0.25f * j;
  }
  att_forward_args good = arguments();
  good.v = nullptr;
  ASSERT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  const std::vector<Line> alone = o_;
  EXPECT_NE(alone[0].values[0], 0) << "queries are zero: the mean of all keys";
  o_.assign(o_.size(), Line{});
  good.v = good.k;
  good.o = o_.data();
  good.k_strides = good.v_strides = {80, 16, 16};
  ASSERT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  EXPECT_EQ(std::memcmp(alone.data(), o_.data(), o_.size() * sizeof(Line)), 0);
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = good;
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`v` is not `k`", [&](auto& args) { args.v = v_.data(); });
  // The stride of a single head is never stepped; those of contiguous keys may be said.
  good.v_strides = {80, 16, 8};
  EXPECT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  good.k_strides = {};
  EXPECT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  refused("`v_strides` are not those of `k`", [](auto& args) { args.v_strides = {40, 8, 8}; });
  refused("`k` is null", [](auto& args) { args.k = nullptr, args.v = nullptr; });
}

TEST_F(CApi, OnlyPagedSequencesHavePages) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  const int32_t table[] = {0};
  att_forward_args args = arguments();
  args.page_table = table;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`page_table` is given, and the spec's layout is bshd"));
  args.page_table = nullptr;
  args.pages = 3;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`pages` is given, and the spec's layout is bshd"));
}

TEST_F(CApi, PagedSequencesHaveNoBackwardPass) {
  spec(kPaged);
  const att_shape shape = {2, 2, 1, 5, 4};
  att_kernel* backward = nullptr;
  EXPECT_EQ(att_kernel_get_for_pass(runtime_, spec_, &shape, ATT_PASS_BACKWARD, &backward),
            ATT_UNSUPPORTED);
  EXPECT_THAT(att_last_error(), HasSubstr("layout `paged` has no backward kernels yet"));
}

TEST_F(CApi, ABackwardLaunchOfPackedSequencesNeedsTheirOffsets) {
  spec(kPacked);
  att_spec_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(att_spec_describe(spec_, &info), ATT_OK);
  EXPECT_EQ(info.layout, ATT_THD);
  const att_shape shape = {2, 2, 1, 5, 6};
  const att_status got =
      att_kernel_get_for_pass(runtime_, spec_, &shape, ATT_PASS_BACKWARD, &kernel_);
  if (got == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
  ASSERT_EQ(got, ATT_OK) << att_last_error();
  alignas(16) float memory[8][2 * 6 * 8] = {};
  std::vector<float> workspace(att_kernel_workspace_bytes(kernel_, &shape) / sizeof(float) + 4);
  const auto address = (reinterpret_cast<std::uintptr_t>(workspace.data()) + 15) / 16 * 16;
  const int32_t cu_q[] = {0, 3, 5}, cu_kv[] = {0, 1, 6};
  att_backward_args good = {};
  good.struct_size = sizeof good;
  good.shape = shape;
  good.q = memory[0];
  good.k = memory[1];
  good.v = memory[2];
  good.o = memory[3];
  good.lse = memory[4];
  good.d_o = memory[3];
  good.d_q = memory[5];
  good.d_k = memory[6];
  good.d_v = memory[7];
  good.workspace = reinterpret_cast<void*>(address);
  good.cu_q = cu_q;
  good.cu_kv = cu_kv;
  ASSERT_EQ(att_backward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  att_backward_args without = good;
  without.cu_kv = nullptr;
  EXPECT_EQ(att_backward(kernel_, &without, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`cu_kv` is null"));
  // A program built against a header without these fields.
  att_backward_args old = good;
  old.struct_size = offsetof(att_backward_args, cu_q);
  EXPECT_EQ(att_backward(kernel_, &old, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`cu_q` is null"));
}

TEST_F(CApi, StridesAreChecked) {
  spec(kFull);
  constexpr att_shape kWide = {2, 2, 2, 3, 5};
  kernel(kWide);
  if (IsSkipped() || HasFatalFailure()) return;
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() - 3;
  const auto launch = [&](att_strides att_forward_args::* strides, const att_strides& given) {
    att_forward_args args = arguments(kWide);
    args.*strides = given;
    return att_forward(kernel_, &args, nullptr);
  };
  const struct {
    att_strides att_forward_args::* operand;
    att_strides strides;
    const char* message;
  } bad[] = {
      {&att_forward_args::k_strides, {0, 8, 0}, "seq stride is given without the others: `k`"},
      {&att_forward_args::o_strides, {0, 16, 8}, "two elements one address: `o`"},
      {&att_forward_args::o_strides, {48, 16, 4}, "two elements one address: `o`"},
      {&att_forward_args::o_strides, {32, 16, 8}, "two elements one address: `o`"},
      {&att_forward_args::o_strides, {48, -16, 16}, "two elements one address: `o`"},
      {&att_forward_args::q_strides, {kHuge - 1, 16, 8}, "beyond any address space: `q`"},
      {&att_forward_args::q_strides,
       {std::numeric_limits<std::int64_t>::min(), 16, 8},
       "beyond any address space: `q`"},
      {&att_forward_args::v_strides, {int64_t{1} << 46, 16, 8}, "beyond any address space: `v`"},
  };
  for (const auto& [operand, strides, message] : bad) {
    EXPECT_EQ(launch(operand, strides), ATT_BAD_INPUT) << message;
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  }
  const struct {
    att_strides att_forward_args::* operand;
    att_strides strides;
  } good[] = {
      {&att_forward_args::k_strides, {0, 16, 8}},  // one K for all batches
      {&att_forward_args::k_strides, {0, 8, 80}},
      {&att_forward_args::o_strides, {48, 16, 8}},   // bshd
      {&att_forward_args::o_strides, {48, 8, 24}},   // bhsd
      {&att_forward_args::o_strides, {16, 32, 8}},   // sbhd
      {&att_forward_args::o_strides, {96, 32, 16}},  // columns of a wider matrix
  };
  for (const auto& [operand, strides] : good) {
    EXPECT_EQ(launch(operand, strides), ATT_OK) << att_last_error();
  }
}

TEST_F(CApi, AStrideThatIsNeverSteppedDoesNotMatter) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  att_forward_args args = arguments();
  args.q_strides = {std::numeric_limits<std::int64_t>::max(), 16, 8};  // batch is 1
  args.k_strides = {3, 8, 5};                                          // and so is kv_heads
  args.o_strides = {0, 16, 8};
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
}

}  // namespace
}  // namespace attune::c_api_test
