// Backward passes of specs with learned tensors: which families serve them, and where their sums
// lie.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "generator/plan/plan.hpp"
#include "generator/spec/spec.hpp"

namespace attune {
namespace {

TEST(LearnedPlan, DeterministicPlansLearnWhatTheyAddUpInOrder) {
  const auto parsed = [](const std::string& more) {
    return parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n" + more, "t").value();
  };
  const auto in_order = [&](const std::string& learned, Target target) {
    EXPECT_TRUE(families_for(parsed(learned), target, Pass::kBackward).ok()) << learned;
    return families_for(parsed(learned + "deterministic: true\n"), target, Pass::kBackward);
  };
  for (const char* learned :
       {"tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\nscore: score + slope[h]\n",
        "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\nsink: sinks[h]\n",
        "tensors: {t: {dtype: float32, dims: [heads, 4095], grad: true}}\n"
        "score: score + t[h, max(0, min(4094, kv_idx - q_idx + 2047))]\n"}) {
    for (const Target target : {Target::kSm80, Target::kSm90a, Target::kCpu}) {
      EXPECT_TRUE(in_order(learned, target).ok()) << learned << to_string(target);
    }
  }
  const auto own = in_order(
      "tensors: {bias: {dtype: float32, dims: [batch, heads, q_len, kv_len], grad: true}}\n"
      "score: score + bias[b, h, q_idx, kv_idx]\n",
      Target::kSm90a);
  EXPECT_TRUE(own.ok()) << "nobody else adds to an element";
  for (const char* shared :
       {"[q_len, kv_len]|[q_idx, kv_idx]", "[heads, q_len, kv_len]|[h, q_idx, kv_idx]",
        "[batch, q_len, kv_len]|[b, q_idx, kv_idx]"}) {
    const std::string_view both(shared);
    const auto bar = both.find('|');
    const auto families =
        in_order(fmt::format("tensors: {{bias: {{dtype: float32, dims: {}, grad: true}}}}\n"
                             "score: score + bias{}\n",
                             both.substr(0, bar), both.substr(bar + 1)),
                 Target::kSm90a);
    ASSERT_TRUE(families.ok()) << shared;
    EXPECT_EQ(*families, std::vector{Family::kSm80}) << "its items take all that share an element";
  }
  for (const char* shared :
       {"tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"
        "score: score + bias[q_idx // 2, kv_idx]\n",
        "tensors: {bias: {dtype: float32, dims: [batch, heads, q_len, kv_len], grad: true}}\n"
        "score: score + bias[b, h, q_idx, kv_idx] * bias[b, h, q_idx, 0]\n",
        "tensors: {t: {dtype: float32, dims: [heads, 4097], grad: true}}\n"
        "score: score + t[h, max(0, min(4096, kv_idx - q_idx + 2047))]\n"}) {
    const auto none = in_order(shared, Target::kSm80);
    ASSERT_FALSE(none.ok()) << shared;
    EXPECT_EQ(none.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(none.error().message.find("`deterministic: true` rules out"), std::string::npos)
        << none.error().message;
  }
  EXPECT_FALSE(in_order("tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"
                        "score: score + bias[q_idx, kv_idx]\n",
                        Target::kCpu)
                   .ok())
      << "every head adds to it";
}

// On GPUs 16 keys of a head have sums of their own, and a last launch adds them up; what a warp's
// registers do not hold is added to as it comes, unless the spec says otherwise.
TEST(LearnedPlan, SumsOfWhatIsLearnedLieInTheWorkspace) {
  constexpr ProblemShape kShape{
      .batch = 3, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 1000};
  const auto bytes = [&](int bins, bool in_order, Target target) {
    const std::string yaml = fmt::format(
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\ndeterministic: {}\n"
        "tensors: {{t: {{dtype: float32, dims: [heads, {}], grad: true}}}}\n"
        "score: score + t[h, max(0, min({}, kv_idx - q_idx))]\n",
        in_order, bins, bins - 1);
    const AttentionSpec spec = parse_spec(yaml, "t").value();
    std::int64_t of_sums = -1;
    const std::vector<Family> families = families_for(spec, target, Pass::kBackward).value();
    for (const Family family : families) {
      for (const KernelPlan& plan :
           legal_plans(spec, family, device_facts(target), Pass::kBackward)) {
        const LaunchRecipe recipe = launch_recipe(spec, plan);
        const bool has_last = recipe.launches.back().symbol.ends_with("_learned");
        std::int64_t found = 0;
        for (const WorkspaceRegion& region : recipe.workspace) {
          if (region.content == WorkspaceRegion::Content::kLearnedSums)
            found = region_bytes(spec, region, kShape);
        }
        EXPECT_EQ(has_last, found > 0) << to_string(plan);
        EXPECT_TRUE(of_sums < 0 || of_sums == found) << to_string(plan);
        EXPECT_TRUE(covers(widest_workspace(spec, Pass::kBackward, target), recipe.workspace))
            << to_string(plan);
        of_sums = found;
      }
    }
    return of_sums;
  };
  for (const Target target : {Target::kSm80, Target::kSm90a}) {
    for (const int bins : {2, 32, 64}) {
      for (const bool in_order : {false, true}) {
        EXPECT_EQ(bytes(bins, in_order, target), 4 * 3 * 8 * 63 * bins) << bins;
      }
    }
    EXPECT_EQ(bytes(65, false, target), 0);
    EXPECT_EQ(bytes(65, true, target), 4 * 3 * 8 * 63 * 65);
  }
}

TEST(LearnedPlan, TheWidestWorkspaceCoversWhatIsLearned) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: fp32\nhead_dim: 40\ntensors:\n"
      "  bias: {dtype: float32, dims: [heads, 32], grad: true}\n"
      "score: score + bias[h, min(31, abs(q_idx - kv_idx))]\n",
      "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  DeviceFacts device = device_facts(Target::kCpu);
  for (const int registers : {16, 32}) {
    device.registers_per_processor = registers;
    const auto widest = widest_workspace(*spec, Pass::kBackward, Target::kCpu);
    const auto plans = legal_plans(*spec, Family::kCpu, device, Pass::kBackward);
    EXPECT_FALSE(plans.empty());
    for (const KernelPlan& plan : plans) {
      EXPECT_TRUE(covers(widest, launch_recipe(*spec, plan).workspace)) << to_string(plan);
      const auto parsed = parse_plan(to_string(plan));
      ASSERT_TRUE(parsed.ok()) << render(parsed.error());
      EXPECT_EQ(*parsed, plan);
    }
  }
}

}  // namespace
}  // namespace attune
