// att_fill_untouched: which rows are filled on the CPU, and what is refused.
#include <cstdint>

#include "tests/unit/runtime/c_api_test.hpp"

namespace attune::c_api_test {
namespace {

class CApiUntouched : public CApi {
 protected:
  void SetUp() override {
    CApi::SetUp();
    spec(kFull);
    kernel();
  }
  // Two tensors' worth of heads, five tokens, rows of two words.
  att_untouched_args untouched() {
    return {.struct_size = sizeof(att_untouched_args),
            .tensor = words_,
            .outer = 2,
            .rows = 5,
            .inner = 2,
            .cu = cu_,
            .sequences = 2,
            .word = 7};
  }
  // One character a row: whether it was filled.
  std::string filled(const att_untouched_args& args) {
    std::fill(std::begin(words_), std::end(words_), 1u);
    EXPECT_EQ(att_fill_untouched(kernel_, &args, nullptr), ATT_OK) << att_last_error();
    std::string found;
    for (int row = 0; row < 10; ++row) {
      EXPECT_EQ(words_[2 * row], words_[2 * row + 1]);
      found += words_[2 * row] == 7 ? 'x' : '.';
    }
    return found;
  }

  std::uint32_t words_[20] = {};
  std::int32_t cu_[3] = {1, 2, 3};
};

TEST_F(CApiUntouched, RowsOutsideOfAllSequences) {
  att_untouched_args args = untouched();
  EXPECT_EQ(filled(args), "x..xxx..xx");
  args.sequences = 1;
  EXPECT_EQ(filled(args), "x.xxxx.xxx");
  cu_[0] = 0;
  cu_[1] = 5;
  EXPECT_EQ(filled(args), "..........");
  cu_[0] = -3;
  cu_[1] = -1;  // what leads out of the tensor is nobody's
  EXPECT_EQ(filled(args), "xxxxxxxxxx");
  cu_[0] = 4;
  cu_[1] = 9;
  EXPECT_EQ(filled(args), "xxxx.xxxx.");
  args.cu = nullptr;
  EXPECT_EQ(filled(args), "xxxxxxxxxx");
  args.rows = 0;
  EXPECT_EQ(filled(args), "..........");
}

TEST_F(CApiUntouched, ArgumentsAreChecked) {
  const auto refused = [&](const char* message, const auto& spoil) {
    att_untouched_args spoiled = untouched();
    spoil(spoiled);
    EXPECT_EQ(att_fill_untouched(kernel_, &spoiled, nullptr), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("struct_size", [](auto& args) { args.struct_size = 8; });
  refused("`tensor` is null", [](auto& args) { args.tensor = nullptr; });
  refused("aligned", [](auto& args) { args.tensor = static_cast<char*>(args.tensor) + 2; });
  refused("no sizes", [](auto& args) { args.rows = -1; });
  refused("no sizes", [](auto& args) { args.sequences = -1; });
  refused("no sizes", [](auto& args) { args.outer = args.inner = std::int64_t{1} << 32; });
  const att_untouched_args args = untouched();
  EXPECT_EQ(att_fill_untouched(nullptr, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_EQ(att_fill_untouched(kernel_, nullptr, nullptr), ATT_BAD_INPUT);
}

}  // namespace
}  // namespace attune::c_api_test
