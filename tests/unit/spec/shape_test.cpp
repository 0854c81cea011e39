#include <gtest/gtest.h>

#include "generator/spec/spec.hpp"

namespace attune {
namespace {

TEST(ParseShape, RoundTrips) {
  const ProblemShape shape{2, 32, 8, 8192, 4096};
  const auto parsed = parse_shape(to_string(shape));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, shape);
}

TEST(ParseShape, FillsInDefaults) {
  const auto parsed = parse_shape("q_len=5,heads=6");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, (ProblemShape{1, 6, 6, 5, 5}));
}

TEST(ParseShape, RefusesWhatIsWrong) {
  const struct {
    std::string_view text, id;
    int column;
  } cases[] = {
      {"", "spec-shape", 1},
      {"heads", "spec-shape", 1},
      {"heads=2,", "spec-shape", 9},
      {"heads=2,q_len=8,,", "spec-shape", 17},
      {"haeds=2,q_len=8", "spec-unknown-key", 1},
      {"heads=2,heads=2", "spec-duplicate-key", 9},
      {"heads=two,q_len=8", "spec-number", 7},
      {"heads=2.5,q_len=8", "spec-number", 7},
      {"heads= 2,q_len=8", "spec-number", 7},
      {"heads=,q_len=8", "spec-number", 7},
      {"heads=0,q_len=8", "spec-out-of-range", 7},
      {"heads=-1,q_len=8", "spec-out-of-range", 7},
      {"heads=1,q_len=99999999999999999999", "spec-out-of-range", 15},
      {"heads=1,q_len=268435457", "spec-out-of-range", 15},
      {"heads=1,q_len=nan", "spec-number", 15},
      {"heads=6,kv_heads=4,q_len=8", "spec-shape-heads", 1},
      {"heads=6", "spec-missing-key", 1},
      {"q_len=6", "spec-missing-key", 1},
  };
  for (const auto& test : cases) {
    const auto parsed = parse_shape(test.text);
    ASSERT_FALSE(parsed.ok()) << test.text;
    EXPECT_EQ(parsed.error().id, test.id) << test.text;
    EXPECT_EQ(parsed.error().span.column, test.column) << test.text;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kBadInput);
  }
  EXPECT_EQ(parse_shape(std::string(100000, '=')).error().id, "spec-too-large");
  EXPECT_EQ(parse_shape("haeds=2,q_len=8").error().hint, "did you mean `heads`?");
}

TEST(Names, RoundTrip) {
  for (const std::string_view name :
       {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "cpu"}) {
    const auto target = target_from_string(name);
    ASSERT_TRUE(target) << name;
    EXPECT_EQ(to_string(*target), name);
  }
  EXPECT_FALSE(target_from_string("sm_90"));
}

}  // namespace
}  // namespace attune
