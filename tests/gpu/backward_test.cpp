// The backward kernels of every family over head dims, dtypes and what specs have, and over the
// library of specs, against the definition in fp64. backward_lengths_test.cpp has lengths.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <regex>

#include "generator/spec/library.hpp"
#include "tests/gpu/judge.hpp"

namespace attune::gpu_test {
namespace {

BackwardPlans plans_of(const AttentionSpec& spec) {
  return cheapest_of_both_passes(spec, kPlanShape, KernelBank::instance().device().facts());
}

struct Case {
  std::string name;
  AttentionSpec spec;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string identifier(std::string_view text) {
  return std::regex_replace(std::string(text), std::regex("[^A-Za-z0-9]+"), "_");
}

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const char* dtype : {"fp16", "bf16", "fp32", "fp32\nprecision: tf32"}) {
    for (const char* dims : {"16", "40", "64", "80", "96", "128", "192", "256", "{qk: 192, v: 128}",
                             "{qk: 64, v: 128}"}) {
      for (const char* mask : {"true", "causal"}) {
        const std::string name = fmt::format("{}_d{}_{}", dtype, dims, mask);
        found.push_back({identifier(name),
                         spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: {}\nmask: {}\n",
                                             dtype, dims, mask))});
      }
    }
    found.push_back({identifier(fmt::format("{}_slopes", dtype)),
                     spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: 64\nmask: causal\n"
                                         "tensors: {{slope: {{dtype: float32, dims: [heads], "
                                         "grad: true}}}}\n"
                                         "score: score + slope[h] * (kv_idx - q_idx)\n",
                                         dtype))});
    found.push_back({identifier(fmt::format("{}_factors", dtype)),
                     spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: 64\nmask: causal\n"
                                         "tensors: {{gain: {{dtype: float32, dims: [heads], "
                                         "grad: true}}, bias: {{dtype: float32, "
                                         "dims: [heads, q_len, kv_len], grad: true}}}}\n"
                                         "score: 3 * tanh(gain[h] * score / 3) + "
                                         "sin(score + bias[h, q_idx, kv_idx])\n",
                                         dtype))});
    found.push_back({identifier(fmt::format("{}_dropout", dtype)),
                     spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: 128\nmask: causal\n"
                                         "dropout: 0.25\n",
                                         dtype))});
    found.push_back({identifier(fmt::format("{}_softcapped_dropout", dtype)),
                     spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: 128\nmask: causal\n"
                                         "dropout: 0.25\nscore: 5 * tanh(score / 5)\n",
                                         dtype))});
    // Rows without live keys, whose dO may be anything, beside others of their tile.
    found.push_back({identifier(fmt::format("{}_d256_dead_rows", dtype)),
                     spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: 256\n"
                                         "mask: kv_idx <= q_idx and q_idx % 7 != 3\n",
                                         dtype))});
  }
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    if (!spec.ok() || spec->dtype == DType::kF32 || spec->dtype == DType::kFp8E4m3) continue;
    if (!entry.name.starts_with("bench/") && !entry.name.starts_with("models/")) {
      for (const auto& [dtype, name] : {std::pair{DType::kF32, "_fp32"}, {DType::kF16, "_fp16"}}) {
        if (spec->dtype == dtype) continue;
        AttentionSpec other = *spec;
        other.dtype = dtype;
        found.push_back({identifier(entry.name) + name, std::move(other)});
      }
    }
    found.push_back({identifier(entry.name), *std::move(spec)});
  }
  return found;
}

class Backward : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    std::vector<Request> requests;
    for (const Case& c : cases()) {
      if (!will_run("Specs/Backward", c.name)) continue;
      std::ranges::copy(requests_of(c.spec, plans_of(c.spec)), std::back_inserter(requests));
    }
    bank.prepare(requests);
  }
};

TEST_P(Backward, IsTheDerivative) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const Case& c = GetParam();
  const auto [forward, backward] = plans_of(c.spec);
  if (backward.empty()) GTEST_SKIP() << "no family has its backward pass";
  std::uint64_t seed = std::hash<std::string>{}(c.name);
  for (const ProblemShape& shape : {ProblemShape{2, 4, 1, 1, 1},
                                    {1, 8, 2, 17, 129},
                                    {2, 2, 2, 127, 128},
                                    {1, 4, 1, 300, 129},
                                    {1, 2, 1, 200, 333}}) {
    EXPECT_TRUE(judge_backward(c.spec, shape, ++seed, forward, backward));
  }
}

// Every ordered plan, where the cost model's choice is one of them.
TEST(OrderedBackward, EveryPlanIsTheDerivative) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const DeviceFacts& facts = bank.device().facts();
  for (const char* lines : {"head_dim: 64\nmask: causal\ndropout: 0.25\n"
                            "score: 5 * tanh(score / 5)\n",
                            "head_dim: 128\nmask: kv_idx <= q_idx and q_idx % 7 != 3\n"}) {
    const AttentionSpec spec = spec_of(std::string("name: test\ndtype: bf16\n") + lines);
    const auto families = families_for(spec, facts.target, Pass::kBackward);
    if (!families.ok() || std::ranges::find(*families, Family::kSm90aOrdered) == families->end()) {
      GTEST_SKIP() << "no ordered kernels";
    }
    const BackwardPlans plans{
        .forward = plans_of(spec).forward,
        .backward = legal_plans(spec, Family::kSm90aOrdered, facts, Pass::kBackward)};
    bank.prepare(requests_of(spec, plans));
    std::uint64_t seed = 77;
    for (const ProblemShape& shape : {ProblemShape{1, 4, 2, 300, 129}, {1, 2, 1, 200, 461}}) {
      EXPECT_TRUE(judge_backward(spec, shape, ++seed, plans.forward, plans.backward));
    }
  }
}

const auto kName = [](const testing::TestParamInfo<Case>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Specs, Backward, testing::ValuesIn(cases()), kName);

}  // namespace
}  // namespace attune::gpu_test
