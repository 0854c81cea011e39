// The tensors of a launch: how they may lie, and what is checked against their declaration.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/unit/runtime/c_api_test.hpp"

namespace attune::c_api_test {
namespace {

class CApiTensors : public CApi {
 protected:
  // Keys 1 and 3 of five are live; V is its row's number.
  void SetUp() override {
    CApi::SetUp();
    if (HasFatalFailure()) return;
    spec(kDocuments);
    kernel();
    for (std::size_t i = 0; i < 40; ++i) {
      v_[i / 16].values[i % 16] = static_cast<float>(i / 8);
    }
  }
  // Its element alignment is all that a tensor has.
  const std::int32_t* documents() const { return padded_ + 1; }
  void expect_result(const att_forward_args& args) {
    ASSERT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
    for (std::size_t i = 0; i < 48; ++i) EXPECT_FLOAT_EQ(o_[i / 16].values[i % 16], 2.0f) << i;
  }

  alignas(64) std::int32_t padded_[7] = {1, 0, 1, 0, 1, 0, 1};
  std::int64_t sizes_[2] = {1, 5};
  std::int64_t strides_[2] = {5, 1};
};

TEST_F(CApiTensors, NeedOnlyTheirElementsAlignment) {
  if (IsSkipped() || HasFatalFailure()) return;
  const void* tensors[] = {documents()};
  att_forward_args args = arguments();
  args.tensors = tensors;
  expect_result(args);
  tensors[0] = reinterpret_cast<const char*>(documents()) + 2;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`doc` is not aligned to 4 bytes"));
}

TEST_F(CApiTensors, TheirRangesNeedTheWholeWorkspace) {
  if (IsSkipped() || HasFatalFailure()) return;
  const void* tensors[] = {documents()};
  att_forward_args args = arguments();
  args.tensors = tensors;
  args.workspace_bytes = att_kernel_workspace_bytes(kernel_, &kShape);
  expect_result(args);
  const std::size_t needed = args.workspace_bytes--;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("this launch needs " + std::to_string(needed)));
}

TEST_F(CApiTensors, AreCheckedAgainstTheDeclaration) {
  if (IsSkipped() || HasFatalFailure()) return;
  const att_tensor good = {documents(), sizes_, nullptr, ATT_INT32, 2};
  att_tensor view = good;
  att_forward_args args = arguments();
  args.tensor_views = &view;
  args.tensor_view_count = 1;
  expect_result(args);
  view.strides = strides_;
  expect_result(args);
  strides_[0] = 99;  // of a dim of size 1
  expect_result(args);

  const auto refused = [&](const char* message, const auto& spoil) {
    view = good;
    spoil();
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT) << message;
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`doc` is null", [&] { view.data = nullptr; });
  refused("`doc` is of float32, and the spec declares int32", [&] { view.dtype = ATT_FP32; });
  refused("`doc` is of fp16", [&] { view.dtype = 0; });
  refused("`doc` has 1 dims, and the spec declares 2", [&] { view.ndim = 1; });
  refused("`sizes` of `doc` is null", [&] { view.sizes = nullptr; });
  refused("`doc` has strides (5, 2)",
          [&] { view.strides = strides_, strides_[1] = 2, strides_[0] = 5; });
  refused("`doc` has sizes (1, 4), and this launch needs (1, 5)", [&] { sizes_[1] = 4; });
  sizes_[1] = 5;
  refused("tensor_view_count is 2", [&] { args.tensor_view_count = 2; });
  args.tensor_view_count = 1;
  const void* tensors[] = {documents()};
  refused("both given", [&] { args.tensors = tensors; });
}

}  // namespace
}  // namespace attune::c_api_test
