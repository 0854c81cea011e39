// What a spec tells of itself.
#include <attune/attune.hpp>

#include "tests/unit/runtime/c_api_test.hpp"

namespace attune::c_api_test {
namespace {

constexpr const char* kRich =
    "attune: 1\nname: rich\ndtype: fp16\nhead_dim: {qk: 192, v: 128}\nlayout: bhsd\n"
    "scalars: {window: 4, cap: float}\ntensors:\n"
    "  slope: {dtype: float32, dims: [heads], grad: true}\n"
    "  doc: {dtype: int32, dims: [batch, kv_len]}\n"
    "  live: {dtype: bool, dims: [kv_heads, 16]}\n"
    "  near: {dtype: bool, dims: [(q_len+31) // 32, kv_len * 2 - 1]}\n"
    "mask: q_idx - kv_idx < window and doc[b, kv_idx] == 0 and live[h_kv, 3]\n"
    "  and near[q_idx // 32, kv_idx]\n"
    "score: cap * tanh((score + slope[h]) / cap)\nsink: 0.5\n"
    "softmax_scale: 0.25\ndropout: float\npasses: [forward, backward]\n"
    "deterministic: true\n";

TEST_F(CApi, DescribesASpecAndItsSlots) {
  spec(
      "attune: 1\nname: x\ndtype: fp16\nhead_dim: {qk: 192, v: 128}\nlayout: bhsd\n"
      "scalars: {window: 4, cap: float}\ntensors: {slope: {dtype: float32, dims: [heads]}}\n"
      "mask: q_idx - kv_idx < window\nscore: cap * tanh((score + slope[h]) / cap)\n");
  att_spec_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(att_spec_describe(spec_, &info), ATT_OK);
  EXPECT_EQ(info.dtype, ATT_FP16);
  EXPECT_EQ(info.layout, ATT_BHSD);
  EXPECT_EQ(info.head_dim_qk, 192);
  EXPECT_EQ(info.head_dim_v, 128);
  EXPECT_EQ(info.tensor_count, 1);
  EXPECT_EQ(info.scalar_count, 2);
  EXPECT_EQ(att_spec_scalar_slot(spec_, "window"), -1);  // folded into the kernel
  EXPECT_GE(att_spec_scalar_slot(spec_, "cap"), 0);
  EXPECT_EQ(att_spec_tensor_slot(spec_, "slope"), 0);
  EXPECT_EQ(att_spec_tensor_slot(spec_, "slop"), -1);
}

TEST(Introspection, OfTheSpec) {
  const auto spec = Spec::from_yaml(kRich);
  ASSERT_TRUE(spec) << spec.error().message;
  const SpecInfo info = spec->info();
  EXPECT_STREQ(info.name, "rich");
  EXPECT_EQ(std::string(info.hash).size(), 32u);
  EXPECT_EQ(info.passes, (1 << ATT_PASS_FORWARD) | (1 << ATT_PASS_BACKWARD));
  EXPECT_EQ(info.has_mask, 1);
  EXPECT_EQ(info.has_score, 1);
  EXPECT_EQ(info.has_sink, 1);
  EXPECT_EQ(info.deterministic, 1);
  EXPECT_EQ(info.softmax_scale, 0.25);
  EXPECT_EQ(info.dropout, 0);
  EXPECT_EQ(info.dropout_at_launch, 1);

  const auto plain = Spec::from_yaml(kFull);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->info().passes, 1 << ATT_PASS_FORWARD);
  EXPECT_EQ(plain->info().has_mask, 0);
  EXPECT_EQ(plain->info().has_score, 0);
  EXPECT_EQ(plain->info().has_sink, 0);
  EXPECT_EQ(plain->info().deterministic, 0);
  EXPECT_STRNE(plain->info().hash, info.hash);
  const auto renamed =
      Spec::from_yaml("attune: 1\nname: other\ndtype: fp32\nhead_dim: 8\nmask: true\n");
  ASSERT_TRUE(renamed);
  EXPECT_STREQ(renamed->info().hash, plain->info().hash);
}

TEST(Introspection, OfASpecWithDropoutsSeedOnTheDevice) {
  const auto spec = Spec::from_yaml(kRich);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_STREQ(spec->info().yaml, kRich);
  EXPECT_EQ(spec->info().dropout_seed_on_device, 0);
  const auto other = spec->with_device_seed();
  ASSERT_TRUE(other) << other.error().message;
  const SpecInfo info = other->info();
  EXPECT_EQ(info.dropout_seed_on_device, 1);
  EXPECT_EQ(info.dropout_at_launch, 1);
  EXPECT_EQ(info.tensor_count, 4);
  EXPECT_STREQ(info.name, "rich");
  EXPECT_STRNE(info.hash, spec->info().hash);
  const auto again = Spec::from_yaml(info.yaml);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_STREQ(again->info().hash, info.hash);
  const auto none = Spec::from_yaml(kFull)->with_device_seed();
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("has no dropout"));
}

TEST(Introspection, OfTensors) {
  const auto spec = Spec::from_yaml(kRich);
  ASSERT_TRUE(spec) << spec.error().message;
  ASSERT_EQ(spec->info().tensor_count, 4);
  const struct {
    const char* name;
    int dtype, grad;
    const char* dims;
    std::vector<std::int64_t> sizes;
  } expected[] = {{"slope", ATT_FP32, 1, "heads", {6}},
                  {"doc", ATT_INT32, 0, "batch, kv_len", {2, 50}},
                  {"live", ATT_BOOL, 0, "kv_heads, 16", {3, 16}},
                  {"near", ATT_BOOL, 0, "(q_len + 31) // 32, 2 * kv_len - 1", {2, 99}}};
  const Shape shape = {2, 6, 3, 40, 50};
  for (const auto& [name, dtype, grad, dims, sizes] : expected) {
    const int slot = spec->tensor_slot(name);
    const auto info = spec->tensor(slot);
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_STREQ(info->name, name);
    EXPECT_EQ(info->dtype, dtype) << name;
    EXPECT_EQ(info->grad, grad) << name;
    EXPECT_EQ(info->ndim, static_cast<int>(sizes.size())) << name;
    EXPECT_STREQ(info->dims, dims);
    EXPECT_EQ(*spec->tensor_sizes(slot, shape), sizes) << name;
  }
  EXPECT_EQ(*spec->tensor_sizes(spec->tensor_slot("doc"), {0, 6, 3, 0, 0}),
            (std::vector<std::int64_t>{0, 0}));
  std::int64_t one = 0;
  EXPECT_EQ(att_spec_tensor_sizes(spec->get(), spec->tensor_slot("doc"), &shape, &one, 1),
            ATT_BAD_INPUT);
  EXPECT_FALSE(spec->tensor(4));
  EXPECT_FALSE(spec->tensor(-1));
  EXPECT_THAT(spec->tensor(4).error().message, HasSubstr("slot 4 is none of the spec's 4 tensors"));
}

TEST(Introspection, OfScalars) {
  const auto spec = Spec::from_yaml(kRich);
  ASSERT_TRUE(spec) << spec.error().message;
  ASSERT_EQ(spec->info().scalar_count, 2);
  const auto cap = spec->scalar(spec->scalar_slot("cap"));
  ASSERT_TRUE(cap);
  EXPECT_STREQ(cap->name, "cap");
  EXPECT_EQ(cap->dtype, ATT_FP32);
  EXPECT_EQ(cap->is_constant, 0);
  const auto window = spec->scalar(1);
  ASSERT_TRUE(window);
  EXPECT_STREQ(window->name, "window");
  EXPECT_EQ(window->dtype, ATT_INT32);
  EXPECT_EQ(window->is_constant, 1);
  EXPECT_EQ(window->value, 4);
  EXPECT_FALSE(spec->scalar(2));
}

}  // namespace
}  // namespace attune::c_api_test
