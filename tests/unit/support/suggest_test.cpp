#include "generator/support/suggest.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "generator/support/hash.hpp"

namespace attune {
namespace {

TEST(NearestName, FindsSlipsAndNothingElse) {
  const std::vector<std::string_view> names = {"mask",    "score", "softmax_scale", "scalars",
                                               "tensors", "h",     "sm_80",         "sm_90a"};
  const struct {
    std::string_view typed, meant;
  } cases[] = {
      {"sm_90", "sm_90a"},
      {"maks", "mask"},
      {"msk", "mask"},
      {"scores", "score"},
      {"softmaxscale", "softmax_scale"},
      {"tensor", "tensors"},
      {"banana", ""},
      {"", ""},
      {"x", ""},
      {"softmax_scales", "softmax_scale"},
      {"scalar", "scalars"},
      {std::string_view(), ""},
  };
  for (const auto& [typed, meant] : cases) EXPECT_EQ(nearest_name(typed, names), meant) << typed;
  EXPECT_EQ(did_you_mean("maks", names), "did you mean `mask`?");
  EXPECT_EQ(did_you_mean(std::string(100000, 'm'), names), "");
}

TEST(NearestName, KnowsWhatOthersCallIt) {
  const std::vector<std::string_view> dtypes = {"fp16", "bf16", "fp32", "fp8_e4m3"};
  EXPECT_EQ(nearest_name("bfloat16", dtypes), "bf16");
  EXPECT_EQ(nearest_name("float16", dtypes), "fp16");
  EXPECT_EQ(nearest_name("half", dtypes), "fp16");
  EXPECT_EQ(nearest_name("float32", dtypes), "fp32");
  const std::vector<std::string_view> tensors = {"int32", "float32", "bool"};
  EXPECT_EQ(nearest_name("float", tensors), "float32");
  EXPECT_EQ(nearest_name("int64", tensors), "int32");
}

TEST(JoinNames, ReadsAsASentence) {
  const std::vector<std::string_view> names = {"a", "b", "c"};
  EXPECT_EQ(join_names(names), "`a`, `b` or `c`");
  EXPECT_EQ(join_names(std::span(names).first(1)), "`a`");
}

// The value that XXH3's authors publish for the empty input, and one of ours.
TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash128_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(hash128_hex("a"), hash128_hex("b"));
}

}  // namespace
}  // namespace attune
