#include "cache/rank_kinds.hpp"

#include <gtest/gtest.h>

#include <span>

namespace attune::cache {
namespace {

DataPlans kind_of(const std::string& label, std::vector<MeasuredPlan> plans) {
  return {.data = {.label = label}, .plans = std::move(plans)};
}

TEST(RankKinds, MayBeatIsWhatGainsOnAverageAndLosesLittleSoFar) {
  const std::vector<DataPlans> kinds = {
      kind_of("x=y", {{"guess", "", 100},
                      {"a", "", 101},      // loses 1 %, gains 2 and 3
                      {"b", "", 99.5},     // gains half a percent everywhere
                      {"c", "", 103},      // loses too much here, gains elsewhere
                      {"d", "", 90},       // was not measured on all
                      {"e", "", 100.5}}),  // loses on average
      kind_of("x=y ~ skewed",
              {{"guess", "", 100}, {"a", "", 98}, {"b", "", 99.5}, {"c", "", 80}, {"e", "", 100}}),
      kind_of("x=y ~ large", {{"guess", "", 100},
                              {"a", "", 97},
                              {"b", "", 99.5},
                              {"c", "", 80},
                              {"d", "", 90},
                              {"e", "", 100}})};
  EXPECT_EQ(may_beat(kinds, "guess"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(may_beat(kinds, "another").empty());
  EXPECT_TRUE(may_beat({}, "guess").empty());
  const auto variations = std::span(kinds).subspan(1);
  EXPECT_EQ(may_beat(variations, "guess"), (std::vector<std::string>{"c", "a", "b"}));
}

}  // namespace
}  // namespace attune::cache
