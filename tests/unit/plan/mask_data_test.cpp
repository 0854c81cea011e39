// What a measured time says of the tensors it stands for.
#include "generator/plan/mask_data.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/expr/evaluator.hpp"

namespace attune {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

AttentionSpec spec_of(const std::string& mask, const std::string& tensors) {
  auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: " + mask +
                             "\ntensors: {" + tensors + "}\n",
                         "");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return *std::move(spec);
}
AttentionSpec documents(const std::string& sample = "") {
  return spec_of("document(doc)", "doc: {dtype: int32, dims: [batch, kv_len]" + sample + "}");
}
constexpr ProblemShape kShape{.batch = 2, .heads = 4, .kv_heads = 4, .q_len = 2048, .kv_len = 2048};

TEST(MaskData, IsOfTensorsThatDecideTiles) {
  const MaskData said = mask_data(documents(", sample: segments(mean=128)"), kShape);
  EXPECT_EQ(said.label, "t0=segments(mean=128)");
  EXPECT_GT(said.live, 0);
  EXPECT_LT(said.live, 0.35);
  EXPECT_LT(said.full, said.live);
  const MaskData unsaid = mask_data(documents(), kShape);
  EXPECT_EQ(unsaid.label, "");
  EXPECT_GT(unsaid.live, said.live);
  // A bias decides nothing.
  auto biased = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\nscore: score + slope[h]\n"
      "tensors: {slope: {dtype: float32, dims: [heads], sample: slopes}}\n",
      "");
  ASSERT_TRUE(biased.ok());
  EXPECT_EQ(mask_data(*biased, kShape), MaskData{});
}

TEST(MaskData, AGivenTensorIsKnownByItsContent) {
  const auto label = [&](double last) {
    AttentionSpec spec = documents();
    expr::TensorValues doc{.sizes = {2, 2048}, .values = std::vector<double>(4096)};
    doc.values.back() = last;
    spec.samples = {{.kind = SampleKind::kGiven,
                     .given = std::make_shared<const expr::TensorValues>(std::move(doc))}};
    return mask_data(spec, kShape).label;
  };
  EXPECT_EQ(label(1), label(1));
  EXPECT_NE(label(1), label(2));
}

TEST(MaskData, SharesAreUnknownWhereScalarsOfTheLaunchDecide) {
  auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: document(doc) and kv_idx < n\n"
      "scalars: {n: int}\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n",
      "");
  ASSERT_TRUE(spec.ok());
  EXPECT_LT(mask_data(*spec, kShape).live, 0);
}

TEST(PlausibleSpecs, AreOfWhatNobodyDescribed) {
  EXPECT_THAT(plausible_specs(documents(", sample: segments(9)"), kShape), SizeIs(1));
  const std::vector<AttentionSpec> kinds = plausible_specs(documents(), kShape);
  ASSERT_THAT(kinds, SizeIs(3));
  EXPECT_THAT(described_samples(kinds[0]), IsEmpty());
  EXPECT_THAT(described_samples(kinds[1]), ElementsAre("doc=segments(mean=32)"));
  EXPECT_THAT(described_samples(kinds[2]), ElementsAre("doc=uniform(low=0, high=2048)"));
  const double many = mask_data(kinds[1], kShape).live, noise = mask_data(kinds[2], kShape).live;
  EXPECT_LT(many, mask_data(kinds[0], kShape).live);
  EXPECT_EQ(noise, 1);
}

TEST(PlausibleSpecs, KeepWhatIsSaidOfOthers) {
  const AttentionSpec two =
      spec_of("document(doc) and kv_idx < n[b]",
              "doc: {dtype: int32, dims: [batch, kv_len], sample: segments(9)}, "
              "n: {dtype: int32, dims: [batch]}");
  const std::vector<AttentionSpec> kinds = plausible_specs(two, kShape);
  ASSERT_THAT(kinds, SizeIs(3));
  EXPECT_THAT(described_samples(kinds[1]),
              ElementsAre("doc=segments(mean=9)", "n=lengths(low=0.02, high=0.2)"));
}

TEST(VariedSpecs, AreOfWhatIsDescribed) {
  const AttentionSpec spec = documents(", sample: segments(mean=128)");
  const auto varied = varied_specs(spec, kShape);
  ASSERT_THAT(varied, SizeIs(2));
  EXPECT_EQ(varied[0].data.label, "t0=segments(mean=128) ~ t0=skewed segments(mean=128)");
  EXPECT_EQ(varied[1].data.label, "t0=segments(mean=128) ~ t0=segments(mean=256)");
  for (const VariedSpec& one : varied) {
    EXPECT_EQ(spec_hash(one.spec), spec_hash(spec));
    EXPECT_EQ(one.data.live, mask_data(one.spec, kShape).live);
    // They are told to another process in words.
    AttentionSpec told = documents();
    ASSERT_TRUE(describe(described_samples(one.spec), told).ok());
    EXPECT_EQ(told.samples, one.spec.samples);
  }
  // What has no other size is only skewed; a constant is what it is.
  EXPECT_THAT(varied_specs(documents(", sample: permutation"), kShape), SizeIs(1));
  EXPECT_THAT(varied_specs(documents(", sample: constant(3)"), kShape), IsEmpty());
  EXPECT_THAT(varied_specs(documents(), kShape), IsEmpty());
  EXPECT_THAT(varied_specs(spec_of("causal", "bias: {dtype: float32, dims: [heads]}"), kShape),
              IsEmpty());
}

TEST(ConfirmingSpecs, AreOtherDrawsOfADescriptionAndItsVariations) {
  const AttentionSpec spec = documents(", sample: segments(mean=128)");
  std::vector<std::string> labels;
  for (const VariedSpec& one : confirming_specs(spec, kShape)) labels.push_back(one.data.label);
  const std::string said = "t0=segments(mean=128) ~ t0=another ";
  EXPECT_THAT(labels, ElementsAre(said + "segments(mean=128)", said + "skewed segments(mean=128)",
                                  said + "segments(mean=256)"));
  EXPECT_THAT(confirming_specs(documents(", sample: constant(3)"), kShape), IsEmpty());
  EXPECT_THAT(confirming_specs(documents(), kShape), IsEmpty());
}

TEST(DescribedSamples, AreWhatDescribeTakes) {
  const std::vector<std::string> samples = {"doc=segments(mean=9)"};
  AttentionSpec spec = documents();
  ASSERT_TRUE(describe(samples, spec).ok());
  EXPECT_EQ(described_samples(spec), samples);
  for (const std::string& wrong :
       {std::string("dok=slopes"), std::string("doc"), std::string("doc=x")})
    EXPECT_FALSE(describe(std::span(&wrong, 1), spec).ok()) << wrong;
}

}  // namespace
}  // namespace attune
