// Rows whose scores lie where no fixed reference of the exponentials serves them, alone or beside
// others in a tile. Of a head of 250 queries every row is judged; no tile divides the lengths.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/score_offsets.hpp"

namespace attune::gpu_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr ProblemShape kShape = {
    .batch = 1, .heads = 1, .kv_heads = 1, .q_len = 250, .kv_len = 987};
static_assert(kShape.q_len <= kMaxRows);
constexpr int kLateFrom = 500;

struct Variant {
  const char* name;
  const char* lines;  // of the spec
};
// Two score buffers and one; a sink, which outweighs sums below 2^-259; rows without a live key
// beside others, and dead tiles between live ones; scores with an offset of their own, and such as
// depend on the key: a line, in one buffer and two, and what is none.
constexpr Variant kVariants[] = {
    {"Full64", "head_dim: 64\n"},
    {"CausalSink128", "head_dim: 128\nmask: causal\nsink: -180.0\n"},
    {"Full256", "head_dim: 256\n"},
    {"PaddedDocuments96",
     "head_dim: 96\n"
     "tensors: {doc: {dtype: int32, dims: [kv_len]}}\n"
     "mask: q_idx % 50 >= 7 and doc[kv_idx] == q_idx // 40 % 3\n"},
    {"CappedCausal128", "head_dim: 128\nmask: causal\nscore: 300 * sigmoid(score / 80) - 140\n"},
    {"SlopedCausal128",
     "head_dim: 128\nmask: causal\nscore: score - 0.02 * (q_idx - kv_idx) - 3\n"},
    {"Sloped64", "head_dim: 64\nscore: score + 0.01 * kv_idx\n"},
    {"Bent64", "head_dim: 64\nscore: score - 0.01 * abs(q_idx - kv_idx)\n"},
};
// A reference that follows the largest score, in one score buffer and two.
constexpr Variant kStrictVariants[] = {
    {"StrictFull64", "head_dim: 64\naccuracy: strict\n"},
    {"StrictCausalSink128", "head_dim: 128\nmask: causal\nsink: -180.0\naccuracy: strict\n"},
    {"StrictFull256", "head_dim: 256\naccuracy: strict\n"},
    {"StrictPaddedDocuments96",
     "head_dim: 96\n"
     "tensors: {doc: {dtype: int32, dims: [kv_len]}}\n"
     "mask: q_idx % 50 >= 7 and doc[kv_idx] == q_idx // 40 % 3\n"
     "accuracy: strict\n"},
    {"StrictCappedCausal128",
     "head_dim: 128\nmask: causal\nscore: 300 * sigmoid(score / 80) - 140\naccuracy: strict\n"},
};
constexpr const char* kTypes[] = {"bf16", "fp16", "fp32"};

class Extremes : public testing::TestWithParam<std::tuple<const char*, Variant>> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const auto& [dtype, variant] = GetParam();
    spec_ = spec_of(fmt::format("name: test\ndtype: {}\n{}", dtype, variant.lines));
    plans_ = plans_of_families(spec_, kShape, bank.device().facts());
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans_) requests.push_back({spec_, plan});
    bank.prepare(requests);
  }

  HostProblem problem_with(const std::function<ScoreOffsets(int row)>& offsets) const {
    HostProblem problem = random_problem(spec_, kShape, 23);
    offset_scores(spec_, problem, kLateFrom, [&](int, int row) { return offsets(row); });
    for (expr::TensorValues& doc : problem.tensors) {
      for (std::size_t i = 0; i < doc.values.size(); ++i) {
        doc.values[i] = static_cast<double>(i / 60 % 3);
      }
    }
    return problem;
  }
  double& query(HostProblem& problem, std::size_t row, std::size_t column) const {
    return problem.q[row * static_cast<std::size_t>(spec_.head_dim_qk) + column];
  }
  double& value(HostProblem& problem, std::size_t key, std::size_t column) const {
    return problem.v[key * static_cast<std::size_t>(spec_.head_dim_v) + column];
  }

  AttentionSpec spec_;
  std::vector<KernelPlan> plans_;
};

constexpr ScoreOffsets everywhere(double offset) { return {.early = offset, .late = offset}; }

struct Pattern {
  const char* name;
  ScoreOffsets (*offsets)(int row);
};
constexpr Pattern kPatterns[] = {
    {"all exponentials underflow", [](int) { return everywhere(-250); }},
    {"all exponentials overflow", [](int) { return everywhere(160); }},
    {"those of one row underflow", [](int row) { return everywhere(row == 77 ? -300 : 0); }},
    {"those of one row overflow", [](int row) { return everywhere(row == 200 ? 200 : 0); }},
    {"those of whole warpgroups",
     [](int row) {
       return everywhere(row / 64 == 1 ? 150 : row / 64 == 2 ? -250 : 0);
     }},
    {"well inside the limits", [](int row) { return everywhere(row % 125 - 45); }},
    {"around the limits",
     [](int row) {
       constexpr std::array kAround = {-160, -149, -140, -127, -120, -90, -75, -70, -66, -63, -60,
                                       -56,  0,    80,   88,   92,   96,  100, 110, 118, 127, 135};
       return everywhere(kAround[static_cast<std::size_t>(row) % kAround.size()]);
     }},
    {"climb or fall late",
     [](int row) {
       constexpr std::array<ScoreOffsets, 8> kWays = {{{-250, 0},
                                                       {0, -250},
                                                       {0, 150},
                                                       {150, 0},
                                                       {-100, 100},
                                                       {100, -100},
                                                       {60, 125},
                                                       {125, 60}}};
       return kWays[static_cast<std::size_t>(row) % kWays.size()];
     }},
    {"one row climbs late",
     [](int row) { return row == 111 ? ScoreOffsets{.early = 0, .late = 150} : ScoreOffsets{}; }},
    {"one row falls late",
     [](int row) { return row == 33 ? ScoreOffsets{.early = 150, .late = 0} : ScoreOffsets{}; }},
};

TEST_P(Extremes, OfScores) {
  for (const Pattern& pattern : kPatterns) {
    EXPECT_TRUE(judge(spec_, problem_with(pattern.offsets), plans_)) << pattern.name;
  }
}

TEST_P(Extremes, BesideRowsThatAreNotFinite) {
  for (const Pattern& pattern : {kPatterns[5], kPatterns[6]}) {
    HostProblem problem = problem_with(pattern.offsets);
    query(problem, 5, 7) = kNan;
    query(problem, 77, 7) = kInfinity;
    query(problem, 140, kSpareDim) = -kInfinity;  // each score
    query(problem, 249, 7) = kNan;
    EXPECT_TRUE(judge(spec_, problem, plans_)) << pattern.name;
  }
}

// The row sums are within their limits, and O is not.
TEST_P(Extremes, OfValues) {
  HostProblem problem = problem_with([](int row) { return everywhere(row % 2 == 0 ? 85 : 0); });
  const double factor = spec_.dtype == DType::kF16 ? 0x1p10 : 0x1p60;
  for (double& value : problem.v) value = round_to(spec_.dtype, value * factor);
  EXPECT_TRUE(judge(spec_, problem, plans_));
}

TEST_P(Extremes, OfValuesThatAreNotFinite) {
  if (spec_.mask) GTEST_SKIP() << "a masked key's value may spoil rows of its tile";
  HostProblem problem = problem_with([](int) { return ScoreOffsets{}; });
  value(problem, 300, 5) = kNan;
  value(problem, 700, 9) = kInfinity;
  value(problem, 100, 11) = kInfinity;
  value(problem, 800, 11) = -kInfinity;
  EXPECT_TRUE(judge(spec_, problem, plans_));
}

// The walk may begin with them: a reference taken there says nothing about the row.
TEST_P(Extremes, BesideKeysWhoseScoresAreMinusInfinity) {
  HostProblem problem = problem_with([](int row) { return everywhere(-row); });
  for (std::size_t row = 0; row < kShape.q_len; ++row) query(problem, row, kSpareDim) = 1;
  for (const bool late : {true, false}) {
    HostProblem half = problem;
    for (std::size_t key = 0; key < kShape.kv_len; ++key) {
      if ((key >= kLateFrom) != late) continue;
      half.k[key * static_cast<std::size_t>(spec_.head_dim_qk) + kSpareDim] = -kInfinity;
    }
    EXPECT_TRUE(judge(spec_, half, plans_)) << (late ? "late" : "early");
  }
}

// References rise again and again along the keys, or once and for all, whichever way they are
// walked.
TEST_P(Extremes, ThatClimbBySteps) {
  constexpr std::size_t kStep = 16;  // keys
  const auto dim = static_cast<std::size_t>(spec_.head_dim_qk);
  for (const double rise : {35.0, 7.0, 3.0, 1.0}) {  // a step, in natural units
    for (const bool falls : {false, true}) {
      HostProblem problem = problem_with([](int) { return ScoreOffsets{}; });
      const double top = round_to(spec_.dtype, rise / spec_.softmax_scale.value);
      for (std::size_t key = 0; key < kShape.kv_len; ++key) {
        const std::size_t from_end = falls ? kShape.kv_len - 1 - key : key;
        problem.k[key * dim + kSpareDim] = static_cast<double>(from_end / kStep);
      }
      for (std::size_t row = 0; row < kShape.q_len; ++row) {
        // Some not at all, some downwards.
        query(problem, row, kSpareDim) = row % 5 == 0 ? 0 : row % 7 == 0 ? -top : top;
      }
      EXPECT_TRUE(judge(spec_, problem, plans_)) << rise << (falls ? " falling" : " rising");
    }
  }
}

// As of Student's distribution with two degrees of freedom: a few elements outweigh all others.
TEST_P(Extremes, OfHeavyTails) {
  HostProblem problem = random_problem(spec_, kShape, 31);
  std::uint64_t state = 7;
  const auto stretch = [&](std::vector<double>& values) {
    for (double& value : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double uniform = (static_cast<double>(state >> 40) + 1) * 0x1p-24;
      value = round_to(spec_.dtype, value / std::sqrt(uniform));
    }
  };
  stretch(problem.q);
  stretch(problem.k);
  EXPECT_TRUE(judge(spec_, problem, plans_));
}

// More work items than any GPU has processors, which all leave the range of the first way: what one
// of them teaches its CTA holds for the next.
TEST_P(Extremes, OfManyItems) {
  constexpr ProblemShape shape = {
      .batch = 7, .heads = 100, .kv_heads = 1, .q_len = 130, .kv_len = 400};
  constexpr int kLate = 200;
  const auto plans = plans_of_families(spec_, shape, KernelBank::instance().device().facts());
  for (const ScoreOffsets offsets :
       {ScoreOffsets{.early = 0, .late = 200}, ScoreOffsets{.early = 200, .late = 0},
        ScoreOffsets{.early = -250, .late = -250}}) {
    HostProblem problem = random_problem(spec_, shape, 37);
    offset_scores(spec_, problem, kLate, [&](int, int) { return offsets; });
    for (expr::TensorValues& doc : problem.tensors) {
      for (std::size_t i = 0; i < doc.values.size(); ++i) {
        doc.values[i] = static_cast<double>(i / 30 % 3);
      }
    }
    EXPECT_TRUE(judge(spec_, problem, plans)) << offsets.early << ", then " << offsets.late;
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<const char*, Variant>>& test) {
  return fmt::format("{}_{}", std::get<1>(test.param).name, std::get<0>(test.param));
}

INSTANTIATE_TEST_SUITE_P(All, Extremes,
                         testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kVariants)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Strict, Extremes,
                         testing::Combine(testing::Values("bf16", "fp16"),
                                          testing::ValuesIn(kStrictVariants)),
                         name_of);

}  // namespace
}  // namespace attune::gpu_test
