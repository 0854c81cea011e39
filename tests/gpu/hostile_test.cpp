// Inputs that a fast softmax gets wrong first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/gpu/judge.hpp"

namespace attune::gpu_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Hostile : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    spec_ = spec_of(std::string("name: test\nhead_dim: 64\nmask: causal\ndtype: ") + GetParam());
    problem_ = random_problem(spec_, kShape, 11);
  }
  // Multiplies the key of every head at `kv_idx`.
  void scale_key(std::int64_t kv_idx, double factor) {
    for (std::int64_t h = 0; h < kShape.kv_heads; ++h) {
      double* key = &problem_.k[static_cast<std::size_t>((h * kShape.kv_len + kv_idx) * 64)];
      std::transform(key, key + 64, key,
                     [&](double x) { return round_to(spec_.dtype, x * factor); });
    }
  }
  double& key_element(std::int64_t kv_idx) {
    return problem_.k[static_cast<std::size_t>(kv_idx * 64)];
  }
  void expect_right() {
    const auto plans = plans_of_families(spec_, kShape, KernelBank::instance().device().facts());
    EXPECT_TRUE(judge(spec_, problem_, plans));
  }

  static constexpr ProblemShape kShape = {
      .batch = 1, .heads = 4, .kv_heads = 2, .q_len = 700, .kv_len = 700};
  AttentionSpec spec_;
  HostProblem problem_;
};

TEST_P(Hostile, OneKeyOfTheLastTileIsAThousandTimesLarger) {
  scale_key(690, 1000);
  expect_right();
}

TEST_P(Hostile, ScoresGrowTileByTile) {
  for (std::int64_t k = 0; k < kShape.kv_len; ++k) scale_key(k, 1 + static_cast<double>(k) / 50);
  expect_right();
}

TEST_P(Hostile, ScoresShrinkTileByTile) {
  for (std::int64_t k = 0; k < kShape.kv_len; ++k) {
    scale_key(k, 1 + static_cast<double>(kShape.kv_len - k) / 50);
  }
  expect_right();
}

TEST_P(Hostile, ANanKeySpoilsTheRowsThatSeeIt) {
  key_element(400) = kNan;
  expect_right();
}

TEST_P(Hostile, AnInfiniteKeyGivesWhatTheDefinitionGives) {
  key_element(400) = kInfinity;
  expect_right();
}

TEST_P(Hostile, AllScoresAreEqual) {
  std::fill(problem_.q.begin(), problem_.q.end(), 0.0);
  expect_right();
}

INSTANTIATE_TEST_SUITE_P(All, Hostile, testing::Values("bf16", "fp16"));

// Scores that climb or fall along the keys, steeply enough to leave fp32's range within a row; and
// rows whose first live key comes late in the walk.
struct Slope {
  const char* name;
  const char* lines;  // of the spec
};
constexpr Slope kSlopes[] = {
    {"RisingWithTheKey", "score: score + (kv_idx - q_idx)\n"},
    {"FallingWithTheKey", "score: score + (q_idx - kv_idx)\n"},
    {"FallingUnderAMask", "mask: causal\nscore: score + (q_idx - kv_idx) * 0.7\n"},
    {"PeakOnTheDiagonal", "score: score - 0.9 * abs(q_idx - kv_idx)\n"},
    {"SteepPeakUnderAMask", "mask: causal\nscore: score - 1.4 * abs(q_idx - 300 - kv_idx)\n"},
    {"ByHead", "score: score + (q_idx - kv_idx) * (h - 0.5) * 0.3\n"},
    {"LateFirstKeys", "mask: kv_idx < 100 or q_idx % 2 == 0\n"},
    {"ManyMaskedTiles", "mask: kv_idx // 8 % 100 == q_idx // 8\n"},
};
constexpr const char* kSlopeTypes[] = {"bf16", "fp16"};

struct SlopeCase {
  AttentionSpec spec;
  ProblemShape shape;
};
std::vector<SlopeCase> slope_cases(const char* dtype, const Slope& slope) {
  std::vector<SlopeCase> cases;
  for (const int head_dim : {64, 256}) {
    for (const int kv_len : {1024, 1337}) {
      cases.push_back(
          {.spec = spec_of(fmt::format("name: test\nhead_dim: {}\ndtype: {}\n{}", head_dim, dtype,
                                       slope.lines)),
           .shape = {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 700, .kv_len = kv_len}});
    }
  }
  return cases;
}

std::string name_of(const char* dtype, const Slope& slope) {
  return fmt::format("{}_{}", slope.name, dtype);
}

class Slopes : public testing::TestWithParam<std::tuple<const char*, Slope>> {
 protected:
  static void SetUpTestSuite() {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    std::vector<Request> requests;
    for (const char* dtype : kSlopeTypes) {
      for (const Slope& slope : kSlopes) {
        if (!will_run("All/Slopes", name_of(dtype, slope))) continue;
        for (const SlopeCase& c : slope_cases(dtype, slope)) {
          for (const KernelPlan& plan :
               cheapest_of_families(c.spec, c.shape, bank.device().facts())) {
            requests.push_back({c.spec, plan});
          }
        }
      }
    }
    bank.prepare(requests);
  }
};

TEST_P(Slopes, AreRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  for (const SlopeCase& c : slope_cases(std::get<0>(GetParam()), std::get<1>(GetParam()))) {
    const auto plans = plans_of_families(c.spec, c.shape, bank.device().facts());
    EXPECT_TRUE(judge(c.spec, random_problem(c.spec, c.shape, 17), plans));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Slopes, testing::Combine(testing::ValuesIn(kSlopeTypes), testing::ValuesIn(kSlopes)),
    [](const auto& test) { return name_of(std::get<0>(test.param), std::get<1>(test.param)); });

}  // namespace
}  // namespace attune::gpu_test
