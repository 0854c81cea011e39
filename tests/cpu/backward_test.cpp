// The CPU family's backward kernels over dtypes, head dims, lengths and head groups, and over the
// library of specs, against the definition in fp64.
#include "runtime/reference/backward.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <span>

#include "generator/spec/library.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune {
namespace {

AttentionSpec spec_of(const std::string& yaml) {
  auto spec = parse_spec("attune: 1\nname: test\n" + yaml, "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? std::move(spec).value() : AttentionSpec{};
}

// Of one query and one key; with grouped heads; lengths that nothing divides; more queries than
// keys, whose first rows see no key of a causal mask; more keys than queries.
constexpr ProblemShape kShapes[] = {{2, 4, 1, 1, 1},
                                    {1, 8, 2, 17, 129},
                                    {2, 2, 2, 127, 128},
                                    {1, 4, 1, 300, 129},
                                    {1, 2, 1, 200, 333}};

constexpr ProblemShape kPlanShape = {1, 4, 1, 300, 300};

class CpuBackward : public testing_support::CpuTest {
 protected:
  // The cheapest that makes dQ in a launch of its own, the cheapest that adds it up beside dK and
  // dV, and, where there is one, the cheapest that does so in parts. Of whatever problem, so that a
  // spec's kernels are compiled once.
  std::vector<KernelPlan> plans_of(const AttentionSpec& spec) {
    const auto by_cost = plans_by_cost(spec, kPlanShape, device_->facts(), Pass::kBackward);
    EXPECT_TRUE(by_cost.ok()) << render(by_cost.error());
    std::vector<KernelPlan> found;
    for (const int form : {0, 1, 2}) {
      const auto plan = std::ranges::find_if(*by_cost, [&](const KernelPlan& candidate) {
        const auto& tile = std::get<CpuBackwardPlan>(candidate.tile);
        return tile.whole_heads + tile.in_parts == form;
      });
      if (plan != by_cost->end()) found.push_back(*plan);
    }
    EXPECT_GE(found.size(), 2u);
    return found;
  }

  // Null after a failure.
  std::unique_ptr<BackwardProblem> on_device_of(const AttentionSpec& spec,
                                                const HostProblem& problem) {
    const auto plan = default_plan(spec, kPlanShape, device_->facts());
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    const LoadedKernel* const forward = plan.ok() ? kernel_of(spec, *plan) : nullptr;
    if (forward == nullptr) return nullptr;
    auto made = BackwardProblem::make(*device_, spec, problem, *forward, seed_);
    EXPECT_TRUE(made.ok()) << render(made.error());
    return made.ok() ? std::move(*made) : nullptr;
  }

  void check(const AttentionSpec& spec, const ProblemShape& shape,
             std::span<const KernelPlan> plans) {
    const HostProblem problem = random_problem(spec, shape, ++seed_);
    const auto on_device = on_device_of(spec, problem);
    ASSERT_NE(on_device, nullptr);
    constexpr bool kRoundsP = false;
    const BackwardOracle oracle =
        oracle_backward(spec, problem, on_device->output_gradients(), kRoundsP);
    for (const KernelPlan& plan : plans) {
      SCOPED_TRACE(fmt::format("{} {} {}", spec.name, to_string(shape), to_string(plan)));
      const LoadedKernel* const backward = kernel_of(spec, plan);
      ASSERT_NE(backward, nullptr);
      const auto gradients = on_device->run(*backward);
      ASSERT_TRUE(gradients.ok()) << render(gradients.error());
      EXPECT_EQ(wrong_gradient(*gradients, oracle), "");
    }
  }
  void check(const AttentionSpec& spec, const ProblemShape& shape) {
    check(spec, shape, plans_of(spec));
  }
  // Of one form: they differ in how dQ is added up, whatever the spec. Those of a list take turns.
  void check_in_turn(const AttentionSpec& spec, std::span<const ProblemShape> shapes,
                     std::size_t turn) {
    const std::vector<KernelPlan> forms = plans_of(spec);
    ASSERT_FALSE(forms.empty());
    const KernelPlan& form = forms[turn % forms.size()];
    for (const ProblemShape& shape : shapes) check(spec, shape, {&form, 1});
  }

  std::uint64_t seed_ = 11;
};

struct Case {
  std::string name;
  AttentionSpec spec;
  std::size_t number = 0;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string identifier(std::string_view text) {
  return std::regex_replace(std::string(text), std::regex("[^A-Za-z0-9]+"), "_");
}

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    for (const char* dims : {"16", "40", "64", "80", "128", "{qk: 192, v: 128}"}) {
      found.push_back(
          {identifier(fmt::format("{}_d{}", dtype, dims)),
           spec_of(fmt::format("dtype: {}\nhead_dim: {}\nmask: causal\n", dtype, dims))});
    }
    found.push_back({identifier(fmt::format("{}_full_dropout", dtype)),
                     spec_of(fmt::format("dtype: {}\nhead_dim: 64\ndropout: 0.25\n", dtype))});
  }
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    if (!spec.ok() || !families_for(*spec, Target::kCpu, Pass::kBackward).ok()) continue;
    found.push_back({identifier(entry.name), *std::move(spec)});
  }
  for (std::size_t i = 0; i < found.size(); ++i) found[i].number = i;
  return found;
}

class CpuBackwardOf : public CpuBackward, public testing::WithParamInterface<Case> {};

TEST_P(CpuBackwardOf, IsTheDerivative) {
  const Case& c = GetParam();
  seed_ = std::hash<std::string>{}(c.name);
  check_in_turn(c.spec, kShapes, c.number);
}

INSTANTIATE_TEST_SUITE_P(Specs, CpuBackwardOf, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST_F(CpuBackward, EveryPlan) {
  const AttentionSpec spec = spec_of(
      "dtype: fp32\nhead_dim: 40\nmask: sliding_window(70)\ndropout: 0.25\n"
      "score: 3 * tanh(score / 3) - 0.01 * q_idx\n");
  DeviceFacts narrow = device_->facts();
  narrow.registers_per_processor = 16;
  for (const DeviceFacts& facts : {device_->facts(), narrow}) {
    std::vector<KernelPlan> plans;
    const auto legal = legal_plans(spec, Family::kCpu, facts, Pass::kBackward);
    // Every seventh has each register block in both forms, with tiles of several sizes.
    for (std::size_t i = 0; i < legal.size(); i += 7) plans.push_back(legal[i]);
    EXPECT_FALSE(plans.empty());
    check(spec, {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 210, .kv_len = 300}, plans);
  }
}

TEST_F(CpuBackward, RowsAndKeysWithoutPartnersGetZero) {
  for (const char* mask : {"q_idx % 3 == 1 and kv_idx > 70", "false"}) {
    check(spec_of(fmt::format("dtype: fp32\nhead_dim: 64\nmask: {}\n", mask)), {1, 2, 1, 50, 140});
  }
  check(spec_of("dtype: fp32\nhead_dim: 64\n"
                "score: log(score - score) if q_idx % 3 == 1 or kv_idx < 70 else score\n"),
        {1, 2, 1, 50, 140});
}

// One number a head, by distance, by buckets under a factor, twice in one score, and of a size that
// depends on lengths.
TEST_F(CpuBackward, LearnsWhatTheScoreLooksUp) {
  const char* const learned[] = {
      "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n"
      "score: score + slope[h] * (kv_idx - q_idx)\n",
      "tensors: {t: {dtype: float32, dims: [32], grad: true}}\n"
      "score: score + t[min(31, abs(q_idx - kv_idx))]\n",
      "tensors: {t: {dtype: float32, dims: [heads, 8], grad: true}}\n"
      "score: score + 0.5 * t[h, (q_idx + kv_idx) % 8] + t[0, kv_idx % 8]\n",
      "tensors: {bias: {dtype: float32, dims: [heads, q_len, kv_len], grad: true},\n"
      "          of_key: {dtype: float32, dims: [kv_len], grad: true}}\n"
      "score: score + bias[h, q_idx, kv_idx] + of_key[kv_idx]\n",
      "tensors: {t: {dtype: float32, dims: [heads, 2 * kv_len - 1], grad: true},\n"
      "          of_block: {dtype: float32, dims: [kv_len // 16], grad: true}}\n"
      "score: score + t[h, q_idx - kv_idx + kv_len - 1] + of_block[kv_idx // 16]\n",
      "tensors: {gain: {dtype: float32, dims: [], grad: true},\n"
      "          half: {dtype: bf16, dims: [kv_len]}}\n"
      "score: score + gain * sin(0.1 * kv_idx) + half[kv_idx]\n",
      // Under a function of the score, beside it, and as its factor.
      "tensors: {bias: {dtype: float32, dims: [heads, q_len, kv_len], grad: true}}\n"
      "score: 3 * tanh((score + bias[h, q_idx, kv_idx]) / 3)\n",
      "tensors: {t: {dtype: float32, dims: [heads, 8], grad: true},\n"
      "          gain: {dtype: float32, dims: [heads], grad: true}}\n"
      "score: gain[h] * score * score + t[h, (q_idx + kv_idx) % 8]\n",
      "tensors: {t: {dtype: float32, dims: [16], grad: true}}\n"
      "score: 2 * tanh(score) + t[min(15, abs(q_idx - kv_idx))]\n"};
  constexpr ProblemShape kShape = {1, 4, 2, 150, 233};
  std::size_t turn = 0;
  for (const char* yaml : learned) {
    check_in_turn(spec_of(fmt::format("dtype: fp32\nhead_dim: 32\nmask: causal\n{}", yaml)),
                  {&kShape, 1}, turn++);
  }
}

TEST_F(CpuBackward, FunctionsOfTheScoreHaveSlopes) {
  constexpr ProblemShape kShape = {1, 4, 2, 90, 133};
  std::size_t turn = 0;
  for (const char* score : {"gelu(score) + silu(2 * score) - softplus(sin(score))",
                            "erf(score) * tan(0.2 * cos(score)) + pow(1 + score * score, 0.3)",
                            "let bent = tanh(score) in bent * bent + pow(1.5, bent)"}) {
    check_in_turn(
        spec_of(fmt::format("dtype: fp32\nhead_dim: 32\nmask: causal\nscore: {}\n", score)),
        {&kShape, 1}, turn++);
  }
}

TEST_F(CpuBackward, ScaleAndDropoutAtLaunch) {
  check(spec_of("dtype: bf16\nhead_dim: 64\nmask: causal\ndropout: float\nsoftmax_scale: float\n"),
        {1, 4, 2, 100, 180});
}

TEST_F(CpuBackward, DropoutsSeedLiesOnTheDevice) {
  check(spec_of("dtype: fp32\nhead_dim: 64\nmask: causal\ndropout: {p: float, seed: device}\n"),
        {1, 4, 2, 100, 180});
}

TEST_F(CpuBackward, IsTheSameAtEveryLaunch) {
  const AttentionSpec spec = spec_of(
      "dtype: fp32\nhead_dim: 64\nmask: causal\n"
      "tensors: {bias: {dtype: float32, dims: [32], grad: true}}\n"
      "score: score + bias[min(31, abs(q_idx - kv_idx))]\n");
  const HostProblem problem = random_problem(spec, {2, 4, 2, 200, 200}, 5);
  const auto on_device = on_device_of(spec, problem);
  ASSERT_NE(on_device, nullptr);
  for (const KernelPlan& plan : plans_of(spec)) {
    const LoadedKernel* const backward = kernel_of(spec, plan);
    ASSERT_NE(backward, nullptr);
    const auto first = on_device->run(*backward);
    ASSERT_TRUE(first.ok()) << render(first.error());
    for (int i = 0; i < 20; ++i) {
      const auto again = on_device->run(*backward);
      ASSERT_TRUE(again.ok()) << render(again.error());
      EXPECT_EQ(again->dq, first->dq);
      EXPECT_EQ(again->dk, first->dk);
      EXPECT_EQ(again->dv, first->dv);
      EXPECT_EQ(again->tensors, first->tensors);
    }
  }
}

}  // namespace
}  // namespace attune
