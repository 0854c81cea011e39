// A cache of fp8 on the CPU family: scales of every kind, faults that must be seen, and what fp8
// costs in accuracy beside bf16.
#include <cmath>

#include "runtime/reference/cache_scales.hpp"
#include "runtime/reference/element_bits.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/paged_checks.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune {
namespace {

constexpr ProblemShape kTypical{.batch = 8, .heads = 4, .kv_heads = 2, .q_len = 32, .kv_len = 2000};

AttentionSpec spec_of(const std::string& lines) {
  const auto spec = parse_spec("attune: 1\nname: t\n" + lines, "");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return *spec;
}

class CpuFp8Cache : public testing_support::CpuTest {
 protected:
  const LoadedKernel* default_kernel(const AttentionSpec& spec) {
    const auto plan = default_plan(spec, kTypical, device_->facts());
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    return plan.ok() ? kernel_of(spec, *plan) : nullptr;
  }
  HostOutput run(const AttentionSpec& spec, const HostProblem& problem,
                 const std::vector<Row>& rows) {
    const LoadedKernel* kernel = default_kernel(spec);
    if (kernel == nullptr) return {};
    const auto out = packed::run_packed(*device_, *kernel, spec, problem, rows);
    EXPECT_TRUE(out.ok()) << render(out.error());
    return out.ok() ? *out : HostOutput{};
  }
};

// The cases' problems take scales of every kind in turn; what no key lies in is NaN.
TEST_F(CpuFp8Cache, PagedBatches) {
  std::uint64_t seed = 7;
  for (const char* lines :
       {"dtype: bf16\nlayout: paged\nhead_dim: 32\nmask: causal\n",
        "dtype: fp16\nlayout: paged\nhead_dim: {qk: 48, v: 16}\nscore: 20 * tanh(score / 20)\n"}) {
    SCOPED_TRACE(lines);
    const AttentionSpec spec = spec_of(std::string("kv_dtype: fp8_e4m3\n") + lines);
    const LoadedKernel* kernel = default_kernel(spec);
    ASSERT_NE(kernel, nullptr);
    paged::check_cases(*device_, *kernel, spec,
                       paged::paged_cases(spec, Arithmetic::kVector, 2, seed += 100));
    paged::check_empty(*device_, *kernel, spec);
    paged::check_garbage(*device_, *kernel, spec, paged::garbage_problems(spec));
  }
}

TEST_F(CpuFp8Cache, OtherLayouts) {
  for (const char* layout : {"bhsd", "thd"}) {
    SCOPED_TRACE(layout);
    const AttentionSpec spec =
        spec_of(fmt::format("dtype: bf16\nkv_dtype: fp8_e4m3\nlayout: {}\nhead_dim: 32\n", layout));
    const LoadedKernel* kernel = default_kernel(spec);
    ASSERT_NE(kernel, nullptr);
    const HostProblem problem =
        random_problem(spec, {.batch = 3, .heads = 4, .kv_heads = 2, .q_len = 9, .kv_len = 150}, 5);
    const std::vector<Row> rows = all_rows(problem);
    auto on_device = DeviceProblem::upload(*device_, spec, problem);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    ASSERT_TRUE((*on_device)->prepare(*kernel).ok());
    ASSERT_TRUE((*on_device)->launch(*kernel, nullptr).ok());
    const auto out = (*on_device)->download(rows);
    ASSERT_TRUE(out.ok()) << render(out.error());
    EXPECT_EQ(compare(*out, oracle_forward(spec, problem, rows, Arithmetic::kVector)).wrong, "");
  }
}

// What an oracle that is told the truth says of a launch that was not.
TEST_F(CpuFp8Cache, FaultsAreSeen) {
  const AttentionSpec spec =
      spec_of("dtype: bf16\nkv_dtype: fp8_e4m3\nlayout: paged\nhead_dim: 64\n");
  const HostProblem truth =
      random_problem(spec, {.batch = 2, .heads = 2, .kv_heads = 2, .q_len = 2, .kv_len = 96}, 3);
  const std::vector<Row> rows = all_rows(truth);
  const ForwardOracle exact = oracle_forward(spec, truth, rows, Arithmetic::kVector);
  ASSERT_EQ(compare(run(spec, truth, rows), exact).wrong, "");
  // K or V with other scales, its stored elements being the same.
  const auto rescaled = [&](const HostScales& scales, const auto& change,
                            std::vector<double> values, std::int64_t heads) {
    HostScales others = scales;
    change(others);
    const std::int64_t slices = truth.pages.count;
    values = stored_elements(values, scales, slices, heads);
    const std::size_t count = values.size() / static_cast<std::size_t>(slices * heads);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto head = static_cast<std::int64_t>(i / count);
      values[i] *= others.of(head / heads, head % heads);
    }
    return std::pair(values, others);
  };
  const auto forgotten = [](HostScales& scales) { scales = {}; };
  const auto of_next_page = [](HostScales& scales) {
    std::ranges::rotate(scales.values, scales.values.begin() + 2);
  };
  const auto of_next_head = [](HostScales& scales) {
    for (std::size_t i = 0; i + 1 < scales.values.size(); i += 2) {
      std::swap(scales.values[i], scales.values[i + 1]);
    }
  };
  const auto expect_seen = [&](const char* what, const auto& change) {
    SCOPED_TRACE(what);
    HostProblem k = truth, v = truth;
    std::tie(k.k, k.k_scales) = rescaled(truth.k_scales, change, truth.k, 2);
    EXPECT_NE(compare(run(spec, k, rows), exact).wrong, "") << "K";
    std::tie(v.v, v.v_scales) = rescaled(truth.v_scales, change, truth.v, 2);
    EXPECT_NE(compare(run(spec, v, rows), exact).wrong, "") << "V";
  };
  expect_seen("no scale", forgotten);
  expect_seen("the scale of another page", of_next_page);
  expect_seen("the scale of another head", of_next_head);
}

// 0x7f and 0xff are NaN: a live key makes its rows NaN, and no others.
TEST_F(CpuFp8Cache, NanOfALiveKeyStays) {
  const AttentionSpec spec =
      spec_of("dtype: bf16\nkv_dtype: fp8_e4m3\nlayout: paged\nhead_dim: 32\n");
  HostProblem problem =
      random_problem(spec, {.batch = 2, .heads = 1, .kv_heads = 1, .q_len = 2, .kv_len = 40}, 3);
  const std::int64_t at = (problem.pages.page_of(1, 3) * problem.pages.size + 3) * 32 + 5;
  EXPECT_EQ(encode(DType::kFp8E4m3, std::vector{double(NAN)}), std::vector{std::byte{0x7f}});
  problem.v[static_cast<std::size_t>(at)] = NAN;
  const std::vector<Row> rows = all_rows(problem);
  const HostOutput out = run(spec, problem, rows);
  ASSERT_EQ(compare(out, oracle_forward(spec, problem, rows, Arithmetic::kVector)).wrong, "");
  EXPECT_TRUE(std::isnan(out.o[32 + 5]));
  EXPECT_EQ(std::ranges::count_if(out.o, [](double x) { return std::isnan(x); }), 1);
}

// Mean over the rows of sqrt(sum of squared errors / sum of squares).
double relative_error(const std::vector<double>& values, const std::vector<double>& exact,
                      std::size_t width) {
  double total = 0;
  for (std::size_t row = 0; row < exact.size(); row += width) {
    double error = 0, size = 0;
    for (std::size_t i = row; i < row + width; ++i) {
      error += (values[i] - exact[i]) * (values[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    total += std::sqrt(error / size);
  }
  return total * static_cast<double>(width) / static_cast<double>(exact.size());
}

// The same numbers, K and V of more bits, through a cache of bf16 and through those of fp8: what
// the table in docs/fp8_cache.md says.
TEST_F(CpuFp8Cache, ErrorBesideBf16) {
  const AttentionSpec plain = spec_of("dtype: bf16\nlayout: paged\nhead_dim: 64\n");
  const AttentionSpec cached =
      spec_of("dtype: bf16\nkv_dtype: fp8_e4m3\nlayout: paged\nhead_dim: 64\n");
  const std::vector<std::int32_t> queries(8, 2), keys(8, 500);
  const ProblemShape shape{.batch = 8, .heads = 4, .kv_heads = 2, .q_len = 16, .kv_len = 500};
  // One column of K, and one key in 50 of V, are ten times as large as the others; V of the second
  // head is `larger` times as large as that of the first.
  for (const double larger : {1.0, 100.0, 10000.0}) {
    HostProblem exact = paged::paged_problem(plain, shape, queries, keys, 16, 11);
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < exact.k.size(); ++i) {
      if (std::isnan(exact.k[i])) continue;
      exact.k[i] = normal(random) * (i % 64 == 7 ? 10 : 1);
      exact.v[i] = normal(random) * (i / 64 % 50 == 3 ? 10 : 1) * (i / 1024 % 2 == 1 ? larger : 1);
    }
    // Such a column is one that queries seldom have.
    for (std::size_t i = 7; i < exact.q.size(); i += 64) {
      exact.q[i] = round_to(DType::kBf16, exact.q[i] / 10);
    }
    const std::vector<Row> rows = all_rows(exact);
    const ForwardOracle oracle = oracle_forward(plain, exact, rows, Arithmetic::kVector);
    const auto error = [&](const AttentionSpec& spec, const HostProblem& problem) {
      return relative_error(run(spec, problem, rows).o, oracle.o.values, 64);
    };
    HostProblem bf16 = exact;
    for (double& value : bf16.k) value = round_to(DType::kBf16, value);
    for (double& value : bf16.v) value = round_to(DType::kBf16, value);
    const double of_bf16 = error(plain, bf16);
    std::vector<double> of_fp8;
    for (const ScaleKind kind :
         {ScaleKind::kNone, ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerPage}) {
      HostProblem quantised = exact;
      choose_scales(cached, quantised, kind);
      of_fp8.push_back(error(cached, quantised));
    }
    fmt::print("| {} | {:.2f} % | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % |\n", larger,
               100 * of_bf16, 100 * of_fp8[0], 100 * of_fp8[1], 100 * of_fp8[2], 100 * of_fp8[3]);
    EXPECT_LT(of_bf16, 0.01);
    for (const double own : {of_fp8[2], of_fp8[3]}) {
      EXPECT_LT(own, 0.06);
      EXPECT_GT(own, 4 * of_bf16) << "not fp8";
    }
    if (larger == 10000) {
      EXPECT_GT(of_fp8[0], 0.3) << "what is above 448 is cut off";
      EXPECT_GT(of_fp8[1], 1.3 * of_fp8[2]) << "small numbers have few bits";
    }
  }
}

}  // namespace
}  // namespace attune
