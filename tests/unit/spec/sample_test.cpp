// What a spec says its tensors are like, and what is drawn for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "generator/spec/draw_tensor.hpp"
#include "generator/spec/spec.hpp"

namespace attune {
namespace {

using testing::Each;
using testing::HasSubstr;

expr::TensorDecl tensor(expr::TensorType type, std::vector<expr::DimSize> dims) {
  return {.name = "t", .type = type, .dims = std::move(dims)};
}
const expr::TensorDecl kInts = tensor(expr::TensorType::kInt32, {{expr::Dim::kKvLen}});
const expr::TensorDecl kReals = tensor(expr::TensorType::kFloat32, {{expr::Dim::kHeads}});
const expr::TensorDecl kBools =
    tensor(expr::TensorType::kBool, {{expr::Dim::kQLen}, {expr::Dim::kKvLen}});

std::string said(std::string_view text, const expr::TensorDecl& declared) {
  const auto sample = parse_sample(text, declared);
  return sample.ok() ? to_string(*sample) : sample.error().id;
}

TEST(Sample, ReadsBackWhatItWrites) {
  for (const char* text : {"constant(value=3)", "uniform(low=-2, high=64)", "sorted(low=0, high=8)",
                           "segments(mean=700)", "permutation", "subtree_ends(branch=2.5)",
                           "lengths(low=0.3, high=1)"}) {
    EXPECT_EQ(said(text, kInts), text);
  }
  for (const char* text : {"normal(mean=1, deviation=0.5)", "slopes"})
    EXPECT_EQ(said(text, kReals), text);
  for (const char* text : {"chance(share=0.25)", "ancestors(branch=3)"})
    EXPECT_EQ(said(text, kBools), text);
}

TEST(Sample, TakesArgumentsByOrderByNameAndByDefault) {
  EXPECT_EQ(said(" uniform( 1 , 5 ) ", kInts), "uniform(low=1, high=5)");
  EXPECT_EQ(said("uniform(high: 5, low: 1)", kInts), "uniform(low=1, high=5)");
  EXPECT_EQ(said("subtree_ends", kInts), "subtree_ends(branch=3)");
  EXPECT_EQ(said("normal(deviation=2)", kReals), "normal(mean=0, deviation=2)");
}

TEST(Sample, MayBeSkewed) {
  for (const char* text : {"skewed segments(mean=700)", "skewed lengths(low=0.3, high=1)",
                           "skewed permutation", "skewed subtree_ends(branch=2.5)"}) {
    EXPECT_EQ(said(text, kInts), text);
  }
  EXPECT_EQ(said("skewed chance(0.25)", kBools), "skewed chance(share=0.25)");
  EXPECT_EQ(said("skewed normal", kReals), "sample-type");
  EXPECT_EQ(said("skewed constant(3)", kInts), "sample-type");
  EXPECT_EQ(said("skew permutation", kInts), "sample-unknown");
}

TEST(Sample, SaysWhatIsWrong) {
  EXPECT_EQ(said("segments(mean=700", kInts), "sample-syntax");
  EXPECT_EQ(said("segment(700)", kInts), "sample-unknown");
  EXPECT_EQ(said("", kInts), "sample-unknown");
  for (const char* text : {"segments", "segments(0)", "segments(many)", "segments(1, 2)",
                           "segments(size=3)", "segments(mean=1, mean=2)", "uniform(5, 1)",
                           "segments(nan)", "lengths(0.5, 1.5)", "segments(,)"}) {
    EXPECT_EQ(said(text, kInts), "sample-argument") << text;
  }
  EXPECT_EQ(said("segments(700)", kReals), "sample-type");
  EXPECT_EQ(said("chance(0.5)", kInts), "sample-type");
  EXPECT_EQ(said("permutation", tensor(expr::TensorType::kInt32, {})), "sample-type");
  EXPECT_THAT(parse_sample("segmets(700)", kInts).error().hint, HasSubstr("`segments`"));
}

TEST(Sample, StandsInASpecAndNotInItsHash) {
  const std::string yaml =
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: document(doc)\n"
      "tensors:\n  doc: {dtype: int32, dims: [batch, kv_len]";
  const auto plain = parse_spec(yaml + "}\n", "t.yaml");
  const auto told = parse_spec(yaml + ", sample: segments(mean=700)}\n", "t.yaml");
  ASSERT_TRUE(plain.ok() && told.ok());
  EXPECT_EQ(sample_of(*plain, 0).kind, SampleKind::kUnsaid);
  EXPECT_EQ(to_string(sample_of(*told, 0)), "segments(mean=700)");
  EXPECT_EQ(spec_hash(*plain), spec_hash(*told));
  const auto wrong = parse_spec(yaml + ", sample: chance(0.5)}\n", "t.yaml");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().id, "sample-type");
  EXPECT_EQ(wrong.error().span.line, 7);
}

std::vector<double> drawn(std::string_view text, const expr::TensorDecl& declared,
                          const ProblemShape& shape, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  return draw_tensor(declared, *parse_sample(text, declared), shape, random).values;
}
constexpr ProblemShape kShape{.batch = 2, .heads = 4, .kv_heads = 4, .q_len = 300, .kv_len = 300};

TEST(DrawTensor, KeepsNumbersInTheirRange) {
  EXPECT_THAT(drawn("constant(7)", kInts, kShape), Each(7));
  EXPECT_THAT(drawn("constant(7)", kBools, kShape), Each(1));
  const std::vector<double> uniform = drawn("uniform(-3, 3)", kInts, kShape);
  EXPECT_EQ(std::set<double>(uniform.begin(), uniform.end()),
            (std::set<double>{-3, -2, -1, 0, 1, 2, 3}));
  const std::vector<double> sorted = drawn("sorted(0, 9)", kInts, kShape);
  EXPECT_TRUE(std::ranges::is_sorted(sorted));
  EXPECT_EQ(std::set<double>(sorted.begin(), sorted.end()).size(), 10u);
  EXPECT_THAT(drawn("lengths(0.5, 0.75)", kInts, kShape),
              Each(testing::AllOf(testing::Ge(150), testing::Le(225))));
}

TEST(DrawTensor, AnotherDrawIsOfOtherNumbersOfTheSameKind) {
  for (const char* const text : {"segments(50)", "permutation", "lengths(0.1, 0.9)"}) {
    const std::string other = std::string("another ") + text;
    EXPECT_NE(drawn(text, kInts, kShape), drawn(other, kInts, kShape)) << text;
    EXPECT_EQ(drawn(other, kInts, kShape), drawn(other, kInts, kShape)) << text;
  }
  const Sample sample = *parse_sample("another skewed segments(50)", kInts);
  EXPECT_TRUE(sample.another && sample.skewed);
  EXPECT_EQ(to_string(sample), "another skewed segments(mean=50)");
  EXPECT_EQ(parse_sample("another constant(3)", kInts).error().id, "sample-type");
}

TEST(DrawTensor, SegmentsAreAsLongAsSaidOnAverage) {
  const ProblemShape lengthy{.q_len = 100'000, .kv_len = 100'000};
  const std::vector<double> segments = drawn("segments(50)", kInts, lengthy);
  EXPECT_TRUE(std::ranges::is_sorted(segments));
  EXPECT_NEAR(100'000 / (segments.back() + 1), 50, 5);
}

TEST(DrawTensor, APermutationHasEveryNumberOnce) {
  std::vector<double> permutation = drawn("permutation", kInts, kShape);
  EXPECT_FALSE(std::ranges::is_sorted(permutation));
  std::ranges::sort(permutation);
  for (std::size_t i = 0; i < permutation.size(); ++i)
    EXPECT_EQ(permutation[i], static_cast<double>(i));
}

// Two subtrees are apart, or one lies in the other.
TEST(DrawTensor, SubtreesNest) {
  const std::vector<double> ends = drawn("subtree_ends(3)", kInts, kShape);
  EXPECT_EQ(ends.front(), 300);
  std::size_t leaves = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    EXPECT_GT(ends[i], static_cast<double>(i));
    leaves += ends[i] == static_cast<double>(i + 1);
    for (std::size_t j = i + 1; static_cast<double>(j) < ends[i]; ++j) EXPECT_LE(ends[j], ends[i]);
  }
  EXPECT_GT(leaves, 100u);  // of a tree whose inner nodes have three children, two thirds
}

TEST(DrawTensor, AncestorsAreTransitiveAndOnesOwn) {
  const std::vector<double> matrix = drawn("ancestors(2)", kBools, kShape);
  const auto is = [&](std::size_t i, std::size_t j) { return matrix[i * 300 + j] != 0; };
  for (std::size_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(is(i, i) && is(i, 0));
    for (std::size_t j = 0; j < 300; ++j) {
      if (!is(i, j)) continue;
      EXPECT_LE(j, i);
      for (std::size_t k = 0; k <= j; ++k) EXPECT_TRUE(!is(j, k) || is(i, k));
    }
  }
}

// How many of `row` differ from the one before.
std::ptrdiff_t changes(const std::vector<double>& row) {
  std::ptrdiff_t count = 0;
  for (std::size_t i = 1; i < row.size(); ++i) count += row[i] != row[i - 1];
  return count;
}

TEST(DrawTensor, SkewedKeepsWhatIsSaidAndSpreadsIt) {
  const auto row = [](const char* text, const expr::TensorDecl& declared = kInts) {
    std::mt19937_64 random(3);
    const ProblemShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 64, .kv_len = 1 << 14};
    return draw_tensor(declared, *parse_sample(text, declared), shape, random).values;
  };
  // As many segments, the longest much longer.
  const auto longest = [](const std::vector<double>& segments) {
    std::map<double, int> lengths;
    for (const double number : segments) ++lengths[number];
    int most = 0;
    for (const auto& [number, length] : lengths) most = std::max(most, length);
    return most;
  };
  const auto even = row("segments(32)"), spread = row("skewed segments(32)");
  EXPECT_NEAR(static_cast<double>(changes(spread)) / static_cast<double>(changes(even)), 1, 0.15);
  EXPECT_GT(longest(spread), 1.5 * longest(even));
  EXPECT_TRUE(std::ranges::is_sorted(spread));

  auto lengths = row("skewed lengths(0.25, 1)");
  std::ranges::sort(lengths);
  EXPECT_GE(lengths.front(), 1 << 12);
  EXPECT_LE(lengths.back(), 1 << 14);
  EXPECT_NEAR(lengths[lengths.size() / 2], (1 << 14) * (0.25 + 0.75 / 8), 400);

  const auto permuted = row("skewed permutation");
  EXPECT_EQ(permuted[777], 777);
  EXPECT_EQ(std::set<double>(permuted.begin(), permuted.end()).size(), permuted.size());

  const auto runs = row("skewed chance(0.5)", kBools), noise = row("chance(0.5)", kBools);
  EXPECT_LT(changes(runs), changes(noise) / 4);
  const double share = std::accumulate(runs.begin(), runs.end(), 0.0) / double(runs.size());
  EXPECT_NEAR(share, 0.5, 0.02);

  const auto ends = row("skewed subtree_ends(1.5)");
  for (std::size_t node = 0; node < ends.size(); ++node) {
    ASSERT_GT(ends[node], static_cast<double>(node));
    ASSERT_LE(ends[node], static_cast<double>(ends.size()));
  }
}

TEST(DrawTensor, SlopesAreALiBis) {
  EXPECT_EQ(drawn("slopes", kReals, kShape),
            (std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625}));
}

TEST(DrawTensor, AGivenTensorIsCutOffAndRepeated) {
  const Sample given{.kind = SampleKind::kGiven,
                     .given = std::make_shared<const expr::TensorValues>(
                         expr::TensorValues{.sizes = {2, 3}, .values = {1, 2, 3, 4, 5, 6}})};
  const expr::TensorDecl declared =
      tensor(expr::TensorType::kInt32, {{expr::Dim::kBatch}, {expr::Dim::kKvLen}});
  std::mt19937_64 random(1);
  const auto at = [&](std::int64_t batch, std::int64_t keys) {
    return draw_tensor(declared, given, {.batch = batch, .q_len = keys, .kv_len = keys}, random);
  };
  EXPECT_EQ(at(2, 3).values, given.given->values);
  EXPECT_EQ(at(1, 2).values, (std::vector<double>{1, 2}));
  EXPECT_EQ(at(3, 4).values, (std::vector<double>{1, 2, 3, 1, 4, 5, 6, 4, 1, 2, 3, 1}));
}

TEST(DrawTensor, ASeedGivesTheSameValues) {
  EXPECT_EQ(drawn("segments(20)", kInts, kShape, 5), drawn("segments(20)", kInts, kShape, 5));
  EXPECT_NE(drawn("segments(20)", kInts, kShape, 5), drawn("segments(20)", kInts, kShape, 6));
}

}  // namespace
}  // namespace attune
