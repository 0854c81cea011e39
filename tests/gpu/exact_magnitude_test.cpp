// Scores between 1e4 and 1e9, where fp32 has room for the numbers and for little beside them: whole
// multiples of a step, so that kernels have them exactly and weights must be right to the rounding
// of P, by random plans, pieces of the keys among them, in every layout.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/cpu/harness.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tests/verification/shared_prefix.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kDense =
    "score: score + bias[q_idx, kv_idx]\n"
    "tensors: {bias: {dtype: float32, dims: [q_len, kv_len]}}\n";
constexpr const char* kLine =
    "score: score - 0.5 * (q_pos - kv_idx) + bias[q_idx, 3]\n"
    "tensors: {bias: {dtype: float32, dims: [q_len, kv_len]}}\n";
constexpr const char* kPacked =
    "score: score + row[q_idx] + tail[kv_idx]\n"
    "tensors: {row: {dtype: float32, dims: [q_len]},\n"
    "          tail: {dtype: float32, dims: [kv_len]}}\n";

struct Variant {
  const char* name;
  const char* lines;
  const char* score;
};
constexpr Variant kVariants[] = {
    {"Full64", "head_dim: 64\n", kDense},
    {"Causal128", "head_dim: 128\nmask: causal\n", kDense},
    {"Window256", "head_dim: 256\nmask: abs(q_pos - kv_idx) < 90\n", kDense},
    {"Full192", "head_dim: 192\n", kDense},
    {"Repeats128", "head_dim: 128\ndeterministic: true\n", kDense},
    {"Strict64", "head_dim: 64\nmask: causal\naccuracy: strict\n", kDense},
    {"Shared576", "head_dim: {qk: 576, v: 512}\nv_in_k: true\nmask: causal\n", kDense},
    {"Cache128", "head_dim: 128\nkv_dtype: fp8_e4m3\nmask: causal\n", kDense},
    {"Alibi128", "head_dim: 128\nmask: causal\n", kLine},
    {"Line64", "head_dim: 64\n", kLine},
    {"Packed64", "layout: thd\nhead_dim: 64\nmask: causal\n", kPacked},
    {"Packed128", "layout: thd\nhead_dim: 128\n", kPacked},
    {"Packed576", "layout: thd\nhead_dim: {qk: 576, v: 512}\nv_in_k: true\n", kPacked},
    {"Paged64", "layout: paged\nhead_dim: 64\n", kPacked},
    {"Paged128", "layout: paged\nhead_dim: 128\nmask: causal\n", kPacked},
    {"Paged576", "layout: paged\nhead_dim: {qk: 576, v: 512}\nv_in_k: true\n", kPacked},
    {"PagedCache128", "layout: paged\nhead_dim: 128\nkv_dtype: fp8_e4m3\n", kPacked},
    {"Prefixes128", "layout: paged\nhead_dim: 128\nmask: causal\nshared_prefixes: true\n", kPacked},
};

// In steps, of a row and of a key: at most 2^22 together.
struct Pattern {
  const char* name;
  double step;
  double (*of_row)(int q);
  double (*of_key)(int k);
};
constexpr double zero(int) { return 0; }
constexpr Pattern kPatterns[] = {
    {"padded keys of -1e4", 0.125, zero, [](int k) { return k % 7 == 3 ? -8e4 : 0.0; }},
    {"padded keys of -1e6", 1, zero, [](int k) { return k % 5 != 3 ? -1e6 : 0.0; }},
    {"rows of -1e5", 0.125, [](int q) { return q % 3 == 1 ? -8e5 : 0.0; }, zero},
    {"rows of -1e6 and keys of 1e6", 1, [](int q) { return q % 4 == 1 ? -1e6 : 0.0; },
     [](int k) { return k % 90 == 40   ? 1e6
                        : k % 90 == 41 ? 999999.0
                                       : 0.0; }},
    {"steps up by 1e3", 0.5, zero, [](int k) { return k / 70 * 2e3; }},
    {"steps down by 1e5", 0.125, [](int q) { return q % 2 * 4e5; },
     [](int k) { return -(k / 200) * 8e5; }},
    {"drift", 0.125, zero, [](int k) { return k * 2.0; }},
    {"drift down, rows of 2e5", 0.125, [](int q) { return q % 2 == 0 ? 0.0 : 16e5; },
     [](int k) { return k * -3.0; }},
    {"rows of 1e8", 64, [](int q) { return q % 3 == 1   ? -2e6
                                           : q % 3 == 2 ? 1.5e6
                                                        : 0.0; }, zero},
    {"keys of 1e9", 512, zero, [](int k) { return k % 31 == 3   ? 2e6
                                                  : k % 31 == 4 ? -2e6
                                                                : 0.0; }},
};

// Whole numbers of steps: up to four dims count, of which none is more than 2 of a query.
void make_exact(const AttentionSpec& spec, HostProblem& problem, const Pattern& pattern) {
  const auto dim = static_cast<std::size_t>(spec.head_dim_qk);
  const auto fill = [&](std::vector<double>& matrix, double unit, std::size_t kinds) {
    for (std::size_t row = 0; row * dim < matrix.size(); ++row) {
      if (std::isnan(matrix[row * dim])) continue;
      for (std::size_t i = 0; i < dim; ++i) {
        const std::size_t mixed = (row * 2654435761u + i * 40503u + row * i) >> 3;
        const double whole = static_cast<double>(mixed % kinds) - static_cast<double>(kinds / 2);
        matrix[row * dim + i] = i < 4 ? unit * whole : 0;
      }
    }
  };
  fill(problem.q, pattern.step, 5);
  const std::vector<double> k = problem.k;
  fill(problem.k, 1, 3);
  if (spec.v_in_k) {  // its other columns are values, and no query's
    for (std::size_t i = 0; i < k.size(); ++i)
      if (i % dim >= 4) problem.k[i] = k[i];
  }
  if (spec.kv_dtype) {
    problem.k_scales = problem.v_scales = {};
    for (double& value : problem.v) value = round_to(*spec.kv_dtype, value);
  }
  for (std::size_t slot = 0; slot < problem.tensors.size(); ++slot) {
    const std::string& name = spec.environment.tensors[slot].name;
    std::vector<double>& values = problem.tensors[slot].values;
    const auto keys = static_cast<std::size_t>(problem.shape.kv_len);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int q = static_cast<int>(name == "row" ? i : i / keys);
      const int key = static_cast<int>(name == "tail" ? i : i % keys);
      values[i] = pattern.step * ((name == "tail" ? 0 : pattern.of_row(q)) +
                                  (name == "row" ? 0 : pattern.of_key(key)));
    }
  }
}

// What P and O may be off by where scores are exact.
ForwardOracle exact_oracle(const AttentionSpec& spec, const HostProblem& problem,
                           const std::vector<Row>& rows) {
  ForwardOracle oracle = oracle_forward(spec, problem, rows);
  const double most = spec.kv_dtype ? 0.1 : 0.03;
  // Weights are few numbers, whose roundings do not cancel out.
  const double least = spec.dtype == DType::kF32 ? 4e-6 : 8e-3;
  for (double& limit : oracle.o.limits) limit = std::clamp(limit, least, most);
  for (std::size_t i = 0; i < oracle.lse.limits.size(); ++i) {
    const double value = std::abs(oracle.lse.values[i]);
    if (std::isfinite(value))
      oracle.lse.limits[i] = std::clamp(oracle.lse.limits[i], 1e-4, 2e-3 + value * 0x1p-22);
  }
  return oracle;
}

class ExactMagnitudes : public testing::TestWithParam<std::tuple<const char*, Variant>> {
 protected:
  void SetUp() override {
    if (!bank_.missing().empty()) GTEST_SKIP() << bank_.missing();
    const auto& [dtype, variant] = GetParam();
    const std::string_view lines = variant.lines;
    const bool is_of_16_bits = lines.find("strict") != lines.npos ||
                               lines.find("fp8") != lines.npos || lines.find("576") != lines.npos;
    if (is_of_16_bits && dtype == std::string_view("fp32")) GTEST_SKIP() << "no such spec";
    spec_ = spec_of(fmt::format("name: t\ndtype: {}\nsoftmax_scale: 1\n{}{}", dtype, variant.lines,
                                variant.score));
    plans_ = plans_of_families(spec_, kPlanShape, bank_.device().facts());
    const auto families = families_for(spec_, bank_.device().facts().target);
    ASSERT_TRUE(families.ok());
    for (const Family family : *families) {
      std::vector<KernelPlan> legal = legal_plans(spec_, family, bank_.device().facts());
      std::erase_if(legal, [](const KernelPlan& plan) { return plan.residues > 1; });
      std::vector<KernelPlan> cut = legal;
      std::erase_if(cut, [](const KernelPlan& plan) {
        const std::string text = to_string(plan);
        return text.find(" p2") == text.npos && text.find(" p3") == text.npos &&
               text.find(" p4") == text.npos && text.find(" p8") == text.npos;
      });
      for (const auto* of : {&legal, &cut})
        if (!of->empty()) plans_.push_back((*of)[of->size() / 2]);
    }
    std::vector<Request> requests;
    for (const KernelPlan& plan : plans_) requests.push_back({spec_, plan});
    bank_.prepare(requests);
    std::erase_if(plans_, [&](const KernelPlan& plan) { return bank_.gives_up(spec_, plan); });
    ASSERT_FALSE(plans_.empty());
  }

  void check_dense(const ProblemShape& shape, const Pattern& pattern) {
    HostProblem problem = random_problem(spec_, shape, 29);
    make_exact(spec_, problem, pattern);
    const std::vector<Row> rows = sample_rows(shape, kMaxRows, 1);
    const ForwardOracle exact = exact_oracle(spec_, problem, rows);
    const auto on_device = DeviceProblem::upload(bank_.device(), spec_, problem);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    for (const KernelPlan& plan : plans_) {
      const auto kernel = bank_.get(spec_, plan);
      ASSERT_TRUE((*on_device)->poison().ok());
      ASSERT_TRUE((*on_device)->prepare(**kernel).ok());
      const Status launched = (*on_device)->launch(**kernel, nullptr);
      ASSERT_TRUE(launched.ok()) << render(launched.error());
      ASSERT_TRUE(bank_.device().synchronize().ok());
      const auto out = (*on_device)->download(rows);
      ASSERT_TRUE(out.ok()) << render(out.error());
      EXPECT_EQ(compare(*out, exact).wrong, "")
          << to_string(plan) << ", " << pattern.name << ", " << to_string(shape);
    }
  }

  void check_sequences(std::uint64_t seed, const Pattern& pattern) {
    std::mt19937_64 random(seed);
    HostProblem problem = !is_paged(spec_)        ? packed::random_packed(spec_, random, 8)
                          : spec_.shared_prefixes ? shared_prefix::random_shared(spec_, random)
                                                  : paged::random_paged(spec_, random);
    make_exact(spec_, problem, pattern);
    const std::vector<Row> rows = sample_rows(problem, kMaxRows, seed);
    const ForwardOracle exact = exact_oracle(spec_, problem, rows);
    for (const KernelPlan& plan : plans_) {
      const auto kernel = bank_.get(spec_, plan);
      const auto out = packed::run_packed(bank_.device(), **kernel, spec_, problem, rows);
      if (!out.ok() && is_paged(spec_) && paged::refuses_pages(out.error(), problem.pages.size))
        continue;
      ASSERT_TRUE(out.ok()) << to_string(plan) << render(out.error());
      EXPECT_EQ(compare(*out, exact).wrong, "")
          << to_string(plan) << ", " << pattern.name << ", seed " << seed;
    }
  }

  KernelBank& bank_ = KernelBank::instance();
  AttentionSpec spec_;
  std::vector<KernelPlan> plans_;
};

TEST_P(ExactMagnitudes, HaveExactWeights) {
  std::uint64_t seed = 71;
  const bool has_halves = std::get<1>(GetParam()).score == kLine;
  for (const Pattern& pattern : kPatterns) {
    if (has_halves && pattern.step > 1) continue;  // fp32 would round the line
    if (is_packed(spec_)) {
      check_sequences(++seed, pattern);
      continue;
    }
    for (const ProblemShape& shape :
         {ProblemShape{1, 2, 1, 150, 420}, {2, 4, 1, 3, 1500}, {1, 2, 2, 64, 3000}})
      check_dense(shape, pattern);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExactMagnitudes,
                         testing::Combine(testing::Values("bf16", "fp16", "fp32"),
                                          testing::ValuesIn(kVariants)),
                         [](const testing::TestParamInfo<ExactMagnitudes::ParamType>& test) {
                           return fmt::format("{}_{}", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

}  // namespace
}  // namespace attune::gpu_test
