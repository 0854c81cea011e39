#include "runtime/capi/spec_texts.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace attune {
namespace {

TEST(SpecTexts, OneHashStandsForOneTextAtATime) {
  SpecTexts texts;
  auto first = texts.hold("12", "causal");
  ASSERT_TRUE(first.ok());
  const auto again = texts.hold("12", "causal");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *first);
  const auto other = texts.hold("12", "full");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().id, "spec-collision");
  EXPECT_TRUE(texts.hold("34", "full").ok());
}

TEST(SpecTexts, ATextThatNobodyHoldsIsForgotten) {
  SpecTexts texts;
  ASSERT_TRUE(texts.hold("12", "causal").ok());
  EXPECT_TRUE(texts.hold("12", "full").ok());
  std::vector<SpecTexts::Text> held;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(texts.hold(std::to_string(i), "text").ok());
    held.push_back(*texts.hold("held " + std::to_string(i / 100), "text"));
  }
  EXPECT_LT(texts.size(), 100U);
}

}  // namespace
}  // namespace attune
