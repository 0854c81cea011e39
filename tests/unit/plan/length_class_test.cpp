// What a measured time says of the lengths of sequences that it stands for.
#include "generator/plan/length_class.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/plan/mask_data.hpp"

namespace attune {
namespace {

using testing::StartsWith;

constexpr ProblemShape kShape{.batch = 16, .heads = 8, .kv_heads = 2, .q_len = 16, .kv_len = 16384};

AttentionSpec spec_of(Layout layout, std::string_view lengths = "") {
  AttentionSpec spec{.name = "t", .layout = layout};
  if (!lengths.empty()) spec.lengths = parse_lengths(lengths).value();
  return spec;
}

TEST(LengthClass, IsCoarse) {
  const std::vector<std::int32_t> lengths = {1000, 1000, 1000, 1000},
                                  nearly = {1040, 990, 1010, 985};
  const LengthClass alike = length_class(lengths, 4000, 0);
  EXPECT_EQ(alike.longest, 1);
  EXPECT_EQ(alike.filled, 1);
  EXPECT_EQ(length_class(nearly, 4100, 0), alike) << "a step of decoding changes nothing";
  const std::vector<std::int32_t> skewed = {4000, 0, 0, 0};
  EXPECT_EQ(length_class(skewed, 4000, 0).longest, 4);
  EXPECT_EQ(length_class(skewed, 16000, 0).filled, 0.25);
  EXPECT_NE(length_class(lengths, 4000, 16), length_class(lengths, 4000, 64));
  const std::vector<std::int32_t> none = {0, 0};
  EXPECT_TRUE(length_class(none, 10, 0).is_known());
}

TEST(LengthClass, OfWhatIsDrawn) {
  EXPECT_FALSE(drawn_class(spec_of(Layout::kBshd), kShape).is_known());
  EXPECT_EQ(drawn_class(spec_of(Layout::kThd, "equal"), kShape).longest, 1);
  EXPECT_EQ(drawn_class(spec_of(Layout::kThd, "skewed(0.5)"), kShape).longest, 8);
  const LengthClass paged = drawn_class(spec_of(Layout::kPaged, "skewed(0.5)"), kShape);
  EXPECT_EQ(paged.longest, 8);
  EXPECT_EQ(paged.filled, 0.125);
  EXPECT_EQ(paged.page_size, 16);
  // What is drawn when nobody says is a kind as well.
  EXPECT_TRUE(drawn_class(spec_of(Layout::kThd), kShape).is_known());
  EXPECT_GT(drawn_class(spec_of(Layout::kThd), kShape).longest, 2);
}

TEST(LengthClass, OfAnotherBatchIsTheSameWhereSequencesAreAsUnlike) {
  ProblemShape twice = kShape;
  twice.batch = 32;
  EXPECT_EQ(drawn_class(spec_of(Layout::kPaged, "uniform(0.3, 1)"), kShape),
            drawn_class(spec_of(Layout::kPaged, "uniform(0.3, 1)"), twice));
}

TEST(LengthsLabel, SaysWhatIsNotAsUsual) {
  EXPECT_EQ(lengths_label(spec_of(Layout::kBshd, "equal")), "");
  EXPECT_EQ(lengths_label(spec_of(Layout::kThd)), "");
  EXPECT_EQ(lengths_label(spec_of(Layout::kPaged)), "");
  EXPECT_EQ(lengths_label(spec_of(Layout::kThd, "skewed(0.5)")), "lengths=skewed(longest=0.5)");
  AttentionSpec paged = spec_of(Layout::kPaged, "equal");
  paged.page_size = 64;
  paged.shared_prefix = 128;
  EXPECT_EQ(lengths_label(paged), "lengths=equal; page=64; prefix=128");
  EXPECT_THAT(lengths_label(spec_of(Layout::kThd, "5, 6")), StartsWith("lengths=given "));
  EXPECT_NE(lengths_label(spec_of(Layout::kThd, "5, 6")),
            lengths_label(spec_of(Layout::kThd, "6, 5")));
}

TEST(MaskData, HasLengthsWhereSequencesArePacked) {
  EXPECT_EQ(mask_data(spec_of(Layout::kBshd), kShape), MaskData{});
  const MaskData unsaid = mask_data(spec_of(Layout::kThd), kShape);
  EXPECT_EQ(unsaid.label, "") << "the name that it had before";
  EXPECT_TRUE(unsaid.is_known());
  EXPECT_EQ(said_data(spec_of(Layout::kThd), kShape), MaskData{});
  const MaskData said = said_data(spec_of(Layout::kThd, "equal"), kShape);
  EXPECT_EQ(said.label, "lengths=equal");
  EXPECT_EQ(said.lengths.longest, 1);
}

}  // namespace
}  // namespace attune
