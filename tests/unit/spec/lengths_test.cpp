// What is said of the lengths of sequences, and what is drawn for it.
#include "generator/spec/lengths.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "generator/spec/draw_lengths.hpp"
#include "generator/spec/sequence_words.hpp"

namespace attune {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::SizeIs;

std::string said(std::string_view text) {
  const auto lengths = parse_lengths(text);
  return lengths.ok() ? to_string(*lengths) : lengths.error().id;
}

AttentionSpec spec_of(Layout layout, std::string_view lengths) {
  AttentionSpec spec{.name = "t", .layout = layout};
  spec.lengths = parse_lengths(lengths).value();
  return spec;
}

std::vector<std::int32_t> drawn(const AttentionSpec& spec, const ProblemShape& shape,
                                std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  return key_lengths(spec, shape, random);
}

TEST(Lengths, ReadBackWhatIsWritten) {
  for (const char* text :
       {"equal", "uniform(low=0.3, high=1)", "skewed(longest=0.5)", "7", "4096, 512, 0"}) {
    EXPECT_EQ(said(text), text);
  }
  EXPECT_EQ(said(" uniform( 0.3 ) "), "uniform(low=0.3, high=1)");
  EXPECT_EQ(said("uniform(high: 0.5, low: 0.25)"), "uniform(low=0.25, high=0.5)");
  EXPECT_EQ(said("\n4096\n512 1\r\n"), "4096, 512, 1");
}

TEST(Lengths, SayWhatIsWrong) {
  EXPECT_EQ(said("uniform(0.3, 1"), "lengths-syntax");
  EXPECT_EQ(said("unifrom(0.3, 1)"), "lengths-unknown");
  EXPECT_EQ(said(""), "lengths-unknown");
  EXPECT_EQ(said("@lengths.txt"), "lengths-unknown");
  for (const char* text :
       {"uniform", "uniform(1, 0.3)", "uniform(0.3, 1.5)", "uniform(-1, 1)", "skewed",
        "skewed(most)", "skewed(share=0.5)", "equal(3)", "skewed(0.5, 0.5)"}) {
    EXPECT_EQ(said(text), "lengths-argument") << text;
  }
  for (const char* text : {"12, 1.5", "12, -3", "12 many", "99999999999", "1e3"})
    EXPECT_EQ(said(text), "lengths-list") << text;
  const Error error = parse_lengths("unifrom(0.3, 1)").error();
  EXPECT_THAT(error.message, HasSubstr("no kind of lengths is called `unifrom`"));
  EXPECT_THAT(error.hint, HasSubstr("did you mean `uniform`?"));
  EXPECT_THAT(parse_lengths("8, 8, x").error().message, HasSubstr("length 2 is `x`"));
}

TEST(Lengths, OfPackedSequencesSumToTheTotal) {
  const ProblemShape shape{.batch = 7, .heads = 1, .kv_heads = 1, .q_len = 7, .kv_len = 1000};
  for (const char* text : {"equal", "uniform(0.3, 1)", "skewed(0.6)", "uniform(0, 0.2)"}) {
    const auto lengths = drawn(spec_of(Layout::kThd, text), shape);
    ASSERT_THAT(lengths, SizeIs(7)) << text;
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), 1000) << text;
  }
  EXPECT_THAT(drawn(spec_of(Layout::kThd, "equal"), shape), Each(AllOf(Ge(142), Le(143))));
  EXPECT_EQ(std::ranges::max(drawn(spec_of(Layout::kThd, "skewed(0.6)"), shape)), 600);
}

TEST(Lengths, OfPagedSequencesAreSharesOfTheLongestThatThereMayBe) {
  const ProblemShape shape{.batch = 8, .heads = 1, .kv_heads = 1, .q_len = 8, .kv_len = 1000};
  EXPECT_THAT(drawn(spec_of(Layout::kPaged, "equal"), shape), Each(1000));
  const auto uniform = drawn(spec_of(Layout::kPaged, "uniform(0.3, 1)"), shape);
  EXPECT_EQ(std::ranges::min(uniform), 300);
  EXPECT_EQ(std::ranges::max(uniform), 1000);
  auto skewed = drawn(spec_of(Layout::kPaged, "skewed(0.5)"), shape);
  std::ranges::sort(skewed);
  EXPECT_EQ(skewed.back(), 1000);
  EXPECT_EQ(skewed.front(), 143) << "seven have as much as the longest";
  EXPECT_EQ(skewed[6], 143);
}

TEST(Lengths, AreTheSameOfEveryDrawButForTheirOrder) {
  const ProblemShape shape{.batch = 32, .heads = 1, .kv_heads = 1, .q_len = 32, .kv_len = 9999};
  const AttentionSpec spec = spec_of(Layout::kThd, "uniform(0.1, 1)");
  auto one = drawn(spec, shape, 1), other = drawn(spec, shape, 2);
  EXPECT_NE(one, other);
  EXPECT_EQ(one, drawn(spec, shape, 1));
  std::ranges::sort(one);
  std::ranges::sort(other);
  EXPECT_EQ(one, other);
}

TEST(Lengths, ThatAreGivenAreThoseOfTheirShapeAndSpreadOverOthers) {
  const AttentionSpec spec = spec_of(Layout::kPaged, "100, 7, 50, 3");
  ProblemShape shape{.batch = 4, .heads = 1, .kv_heads = 1, .q_len = 4, .kv_len = 100};
  EXPECT_THAT(drawn(spec, shape), ElementsAre(100, 7, 50, 3));
  shape.batch = 2;
  shape.kv_len = 50;
  auto fewer = drawn(spec, shape);
  std::ranges::sort(fewer);
  EXPECT_THAT(fewer, ElementsAre(4, 50)) << "as quantiles, beside a longest of kv_len";
}

TEST(Lengths, AreCheckedAgainstLayoutAndShape) {
  const ProblemShape shape{.batch = 4, .heads = 1, .kv_heads = 1, .q_len = 4, .kv_len = 100};
  const auto wrong = [&](Layout layout, const char* lengths) {
    const Status status = check_lengths(spec_of(layout, lengths), shape);
    return status.ok() ? "" : status.error().id + ": " + status.error().message;
  };
  EXPECT_EQ(wrong(Layout::kThd, "25, 25, 25, 25"), "");
  EXPECT_EQ(wrong(Layout::kPaged, "100, 100, 100, 1"), "");
  EXPECT_EQ(wrong(Layout::kBshd, "equal"),
            "lengths-layout: lengths are given, and t has layout `bshd`");
  EXPECT_EQ(wrong(Layout::kThd, "1, 2, 3"),
            "lengths-shape: 3 lengths are given, and the shape has batch=4");
  EXPECT_EQ(wrong(Layout::kThd, "100, 1, 0, 0"),
            "lengths-shape: the lengths sum to 101, and the shape has kv_len=100");
  EXPECT_EQ(wrong(Layout::kPaged, "101, 1, 0, 0"),
            "lengths-shape: a length is 101, and the shape has kv_len=100");
  EXPECT_EQ(wrong(Layout::kThd, "skewed(0.2)"),
            "lengths-shape: the longest of 4 sequences has 0.2 of all keys, less than the others");
  EXPECT_EQ(check_lengths(AttentionSpec{}, shape).ok(), true);
  const auto skewed = [](std::int64_t batch, const char* lengths) {
    return check_lengths(spec_of(Layout::kThd, lengths), {.batch = batch, .kv_len = 100});
  };
  EXPECT_TRUE(skewed(1, "skewed(0.5)").ok()) << "one sequence has them all";
  EXPECT_EQ(skewed(3, "skewed(0.333)").error().hint, "`longest` is 0.333334 at least");
  EXPECT_TRUE(skewed(3, "skewed(0.333334)").ok());
}

TEST(Lengths, OfASpecAreThoseOfItsTuneShapes) {
  const auto parse = [](const std::string& layout, const std::string& lengths) {
    return parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nlayout: " + layout +
                          "\ntune:\n  shapes: [{batch: 4, heads: 2, q_len: 4, kv_len: 100}]\n"
                          "  lengths: " +
                          lengths + "\n",
                      "t.yaml");
  };
  const auto spec = parse("thd", "uniform(0.3, 1)");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  EXPECT_EQ(to_string(spec->lengths), "uniform(low=0.3, high=1)");
  EXPECT_EQ(parse("thd", "unifrom(0.3, 1)").error().id, "lengths-unknown");
  EXPECT_EQ(parse("thd", "unifrom(0.3, 1)").error().span.line, 8);
  EXPECT_EQ(parse("bshd", "equal").error().id, "lengths-layout");
  EXPECT_EQ(parse("thd", "skewed(0.1)").error().id, "lengths-shape");
  EXPECT_EQ(canonical_text(*spec), canonical_text(*parse("thd", "equal")))
      << "they are of what is made up, not of the kernel";
}

TEST(SequenceWords, TakeTheSpecsPlace) {
  AttentionSpec spec = spec_of(Layout::kPaged, "5, 6");
  spec.page_size = 64;
  spec.shared_prefix = 3;
  AttentionSpec other = spec_of(Layout::kPaged, "equal");
  ASSERT_TRUE(take_words(sequence_words(spec), other).ok());
  EXPECT_EQ(other.lengths, spec.lengths);
  EXPECT_EQ(sequence_words(other), sequence_words(spec));
  EXPECT_EQ(take_words({.lengths = "some"}, other).error().id, "lengths-unknown");
  for (const SequenceWords& words :
       {SequenceWords{.page_size = 0}, SequenceWords{.page_size = 1 << 17},
        SequenceWords{.shared_prefix = -1}}) {
    EXPECT_EQ(take_words(words, other).error().id, "sequences-size");
  }
}

}  // namespace
}  // namespace attune
