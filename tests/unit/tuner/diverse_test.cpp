#include "tuner/search/diverse.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune {
namespace {

using testing::Contains;
using testing::Not;
using testing::SizeIs;

KernelPlan sm90a_plan(int warpgroups, int tile_kv,
                      Sm90aPlan::Schedule schedule = Sm90aPlan::Schedule::kLongestFirst) {
  return {.pass = Pass::kForward,
          .target = Target::kSm90a,
          .tile = Sm90aPlan{.warpgroups = warpgroups, .tile_kv = tile_kv, .schedule = schedule}};
}

TEST(DiversePlans, TheBestOfEveryKindComeBeforeWhatIsFaster) {
  std::vector<TimedPlan> by_time;
  for (int i = 0; i < 30; ++i) by_time.push_back({100.0 + i * 0.1, sm90a_plan(3, 16 + 2 * i)});
  const KernelPlan two = sm90a_plan(2, 64), also_two = sm90a_plan(2, 80),
                   in_turn = sm90a_plan(3, 64, Sm90aPlan::Schedule::kPersistent),
                   one = sm90a_plan(1, 128);
  by_time.push_back({112, two});
  by_time.push_back({113, also_two});
  by_time.push_back({118, in_turn});
  by_time.push_back({126, one});
  const std::vector<KernelPlan> plans = diverse_plans(by_time);
  EXPECT_THAT(plans, SizeIs(16));
  EXPECT_THAT(plans, Contains(by_time.front().plan));
  EXPECT_THAT(plans, Contains(two));
  EXPECT_THAT(plans, Contains(in_turn));
  EXPECT_THAT(plans, Not(Contains(also_two))) << "neither the first of its kind nor fast";
  EXPECT_THAT(plans, Not(Contains(one))) << "much slower";
}

TEST(DiversePlans, AClusterIsAKindOfItsOwn) {
  const auto decode = [](int pieces, bool in_cluster) {
    return KernelPlan{.pass = Pass::kForward,
                      .target = Target::kSm90a,
                      .tile = DecodePlan{.pieces = pieces, .in_cluster = in_cluster}};
  };
  const std::vector<KernelPlan> plans = diverse_plans(std::vector<TimedPlan>{
      {100, decode(2, false)}, {115, decode(4, false)}, {116, decode(2, true)}});
  EXPECT_THAT(plans, testing::ElementsAre(decode(2, false), decode(2, true)));
  EXPECT_TRUE(diverse_plans({}).empty());
}

}  // namespace
}  // namespace attune
