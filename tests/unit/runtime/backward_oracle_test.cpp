// The fp64 gradients against differences of the fp64 forward pass, and their limits against plain
// arithmetic in the dtype and planted faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "runtime/reference/backward.hpp"
#include "tests/verification/plain_backward.hpp"

namespace attune {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Gt;
using testing::Lt;
using verification::plain_backward;

AttentionSpec parsed(const std::string& lines) {
  auto spec = parse_spec("attune: 1\nname: t\ndtype: fp32\n" + lines, "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return std::move(*spec);
}

// With or without what each element may be off by.
template <typename Output>
const std::vector<double>& values_of(const Output& output) {
  if constexpr (requires { output.values; }) {
    return output.values;
  } else {
    return output;
  }
}

// What the loss changes by with what arrives at the outputs.
double loss(const AttentionSpec& spec, const HostProblem& problem,
            const OutputGradients& gradients) {
  const auto forward = oracle_forward(spec, problem);
  const std::vector<double>&o = values_of(forward.o), &lse = values_of(forward.lse);
  double total = 0;
  for (std::size_t i = 0; i < o.size(); ++i)
    if (o[i] != 0) total += o[i] * gradients.d_o[i];
  for (std::size_t i = 0; i < lse.size(); ++i)
    if (std::isfinite(lse[i])) total += lse[i] * gradients.d_lse[i];
  return total;
}

struct Case {
  std::string name, spec;
  ProblemShape shape;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr ProblemShape kShape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 7};

class Differences : public testing::TestWithParam<Case> {};

TEST_P(Differences, AgreeWithTheGradients) {
  const AttentionSpec spec = parsed(GetParam().spec);
  HostProblem problem = random_problem(spec, GetParam().shape, 7);
  OutputGradients gradients = random_output_gradients(spec, problem.shape, 8);
  const BackwardOracle oracle = oracle_backward(spec, problem, gradients);
  std::mt19937 random(9);
  const auto check = [&](const std::string& name, std::vector<double>& values,
                         const Expected& expected) {
    ASSERT_EQ(values.size(), expected.values.size());
    constexpr std::size_t kMost = 60;
    for (std::size_t i = 0; i < std::min(kMost, values.size()); ++i) {
      const std::size_t at = values.size() <= kMost ? i : random() % values.size();
      double& x = values[at];
      const double old = x;
      const auto difference = [&](double h) {
        x = old + h;
        const double above = loss(spec, problem, gradients);
        x = old - h;
        const double below = loss(spec, problem, gradients);
        x = old;
        return (above - below) / (2 * h);
      };
      constexpr double kStep = 1e-3;
      const double slope = (4 * difference(kStep / 2) - difference(kStep)) / 3;
      ASSERT_NEAR(expected.values[at], slope, 1e-8 * (1 + std::abs(slope)))
          << name << "[" << at << "]";
    }
  };
  check("dq", problem.q, oracle.dq);
  check("dk", problem.k, oracle.dk);
  check("dv", problem.v, oracle.dv);
  for (std::size_t slot = 0; slot < problem.tensors.size(); ++slot) {
    const auto& tensor = spec.environment.tensors[slot];
    if (!tensor.grad) {
      EXPECT_TRUE(oracle.tensors[slot].values.empty());
      continue;
    }
    check(tensor.name, problem.tensors[slot].values, oracle.tensors[slot]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backward, Differences,
    testing::Values(
        Case{"full", "head_dim: 8\n", kShape},
        Case{"wide_values",
             "head_dim: {qk: 8, v: 24}\nmask: causal\n",
             {.batch = 1, .heads = 3, .kv_heads = 1, .q_len = 9, .kv_len = 4}},
        Case{"softcap", "head_dim: 8\nmask: causal\nscore: 2 * tanh(score / 2)\n", kShape},
        Case{"dropout", "head_dim: 8\ndropout: 0.25\nsoftmax_scale: float\n", kShape},
        Case{"documents",
             "head_dim: 8\ntensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
             "mask: document(doc)\n",
             {.batch = 2, .heads = 4, .kv_heads = 1, .q_len = 12, .kv_len = 12}},
        Case{"sinks",
             "head_dim: 8\ntensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\n"
             "mask: kv_idx < q_idx\nsink: 2 * sinks[h]\n",
             kShape},
        Case{"alibi",
             "head_dim: 8\ntensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n"
             "mask: causal\nscore: score - slope[h] * (q_idx + kv_len - q_len - kv_idx)\n",
             kShape},
        Case{"t5",
             "head_dim: 8\ntensors: {bias: {dtype: float32, dims: [heads, 8], grad: true}}\n"
             "score: score + bias[h, (4 if kv_idx > q_idx else 0) + min(3, abs(kv_idx - q_idx))]\n",
             kShape},
        Case{"dense_and_gate",
             "head_dim: 8\ntensors:\n"
             "  bias: {dtype: float32, dims: [heads, q_len, kv_len], grad: true}\n"
             "  gate: {dtype: float32, dims: [batch, kv_len], grad: true}\n"
             "score: 3 * tanh(score * gate[b, kv_idx] + bias[h, q_idx, kv_idx])"
             " + sigmoid(gate[b, 0])\n"
             "dropout: float\nsink: bias[h, 0, 0] * gate[b, 1]\n",
             kShape}),
    [](const auto& info) { return info.param.name; });

// Nothing flows through rows without live keys, whatever arrives there, nor to keys without rows.
TEST(Backward, WhatIsDeadHasNoGradient) {
  const AttentionSpec spec =
      parsed("head_dim: 8\nmask: kv_idx < q_idx and kv_idx != 2 and q_idx != 4\n");
  HostProblem problem =
      random_problem(spec, {.heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 6}, 3);
  OutputGradients gradients = random_output_gradients(spec, problem.shape, 4);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const int h : {0, 1}) {
    for (const int q : {0, 4}) {
      const auto row = static_cast<std::size_t>(h * 5 + q);
      gradients.d_lse[row] = kNan;
      std::fill_n(gradients.d_o.begin() + static_cast<std::ptrdiff_t>(row) * 8, 8, kNan);
    }
  }
  for (const int k : {2, 4, 5}) {
    std::fill_n(problem.k.begin() + k * 8, 8, kNan);
    std::fill_n(problem.v.begin() + k * 8, 8, kNan);
  }
  const BackwardOracle oracle = oracle_backward(spec, problem, gradients);
  const auto row_of = [](const Expected& e, int row) {
    return std::vector<double>(e.values.begin() + row * 8, e.values.begin() + row * 8 + 8);
  };
  for (const int row : {0, 4, 5, 9}) EXPECT_THAT(row_of(oracle.dq, row), Each(0));
  for (const int row : {2, 4, 5}) {
    EXPECT_THAT(row_of(oracle.dk, row), Each(0));
    EXPECT_THAT(row_of(oracle.dv, row), Each(0));
  }
  for (const Expected* e : {&oracle.dq, &oracle.dk, &oracle.dv})
    for (const double value : e->values) ASSERT_TRUE(std::isfinite(value));
}

// A logit of each head is what a tensor of logits is made of.
TEST(BackwardOracle, TheSinksGradientIsThatOfItsTensor) {
  const AttentionSpec spec = parsed(
      "head_dim: 8\nmask: causal\nsink: sinks[b, h]\n"
      "tensors: {sinks: {dtype: float32, dims: [batch, heads], grad: true}}\n");
  const HostProblem problem =
      random_problem(spec, {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 9, .kv_len = 12}, 3);
  const BackwardOracle oracle =
      oracle_backward(spec, problem, random_output_gradients(spec, problem.shape, 4));
  EXPECT_EQ(oracle.sink.values.size(), 8U);
  EXPECT_EQ(oracle.sink.values, oracle.tensors.front().values);
}

// A kernel's probability of 9e-39 is 0, whatever steep scores and large queries make of it.
TEST(BackwardOracle, WhatUnderflowsMayBeNothing) {
  const AttentionSpec spec = parsed("head_dim: 8\nsoftmax_scale: 1.0\nscore: score * score\n");
  HostProblem problem = random_problem(spec, {.q_len = 1, .kv_len = 2}, 3);
  std::ranges::fill(problem.q, 0);
  std::ranges::fill(problem.k, 0);
  problem.q[0] = 1000;
  problem.k[0] = 0.08;
  problem.k[8] = std::sqrt(6400 - 87.6) / 1000;
  const BackwardOracle oracle =
      oracle_backward(spec, problem, random_output_gradients(spec, problem.shape, 4));
  EXPECT_GT(std::abs(oracle.dk.values[8]), 1e-33);
  EXPECT_LT(std::abs(oracle.dk.values[8]), oracle.dk.limits[8]);
}

// P of 3.7e-8 is 2^-24 in fp16, before it is scaled for what dropout drops.
TEST(BackwardOracle, DropoutScalesWhatRoundingMakesOfP) {
  AttentionSpec spec = parsed("head_dim: 8\nsoftmax_scale: 1.0\ndropout: 0.96875\n");
  spec.dtype = DType::kF16;
  HostProblem problem = random_problem(spec, {.q_len = 1, .kv_len = 400}, 3);
  std::ranges::fill(problem.q, 0);
  std::ranges::fill(problem.k, 0);
  problem.q[0] = 1;
  problem.k[0] = 17.125;
  const OutputGradients gradients = random_output_gradients(spec, problem.shape, 4);
  const BackwardOracle oracle = oracle_backward(spec, problem, gradients);
  const double p = std::exp(-17.125), of_rounding = round_to(DType::kF16, p) / p;
  double largest = 0;
  for (std::size_t i = 8; i < oracle.dv.values.size(); ++i) {
    const double value = oracle.dv.values[i], error = std::abs(value * (of_rounding - 1));
    EXPECT_LT(error, oracle.dv.limits[i]) << i;
    largest = std::max(largest, error);
  }
  EXPECT_GT(largest, 0);
}

// The rows of a sample, from the exact O and LSE, are those of the whole.
TEST(BackwardOracle, APackedSequenceIsTheProblemOfItsOwn) {
  const std::string lines =
      "head_dim: {qk: 8, v: 16}\nmask: causal\ndropout: 0.25\nsink: 0.5\n"
      "tensors: {slope: {dtype: float32, dims: [heads], grad: true},\n"
      "          bias: {dtype: float32, dims: [kv_len], grad: true}}\n"
      "score: score + slope[h] * kv_idx + bias[kv_idx]\n";
  const AttentionSpec spec = parsed("layout: thd\n" + lines), dense_spec = parsed(lines);
  // The second has no queries, the third two of three; a token lies behind the last.
  const ProblemShape shape{.batch = 3, .heads = 2, .kv_heads = 1, .q_len = 10, .kv_len = 16};
  HostProblem packed = random_problem(spec, shape, 3);
  packed.sequences = {.cu_q = {0, 6, 6, 9}, .cu_kv = {0, 7, 9, 15}, .used_q = {6, 0, 2}};
  const OutputGradients given = random_output_gradients(spec, shape, 4);
  ASSERT_EQ(given.d_lse.size(), 2u * 10);
  const BackwardOracle all = oracle_backward(spec, packed, given);
  EXPECT_EQ(all.dq.values.size(), (2 * 6 + 2 * 2) * 8u);
  EXPECT_EQ(all.dk.values.size(), 15u * 8);
  const auto rows = [](const std::vector<double>& from, std::int64_t heads, std::int64_t tokens,
                       std::int64_t first, std::int64_t count, std::int64_t width) {
    std::vector<double> part;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto begin = from.begin() + (h * tokens + first) * width;
      part.insert(part.end(), begin, begin + count * width);
    }
    return part;
  };
  std::size_t q_at = 0, k_at = 0;
  for (int b = 0; b < 3; ++b) {
    const auto [slice, q_first, q_len, kv_first, kv_len] = span_of(packed, b);
    if (q_len == 0) {
      for (std::int64_t i = 0; i < kv_len * 8; ++i)
        EXPECT_EQ(all.dk.values[k_at * 8 + static_cast<std::size_t>(i)], 0);
      k_at += static_cast<std::size_t>(kv_len);
      continue;
    }
    // Dropout goes by the number of the sequence: the dense problem has as many before it.
    HostProblem dense = packed;
    dense.sequences = {};
    dense.shape = {.batch = b + 1, .heads = 2, .kv_heads = 1, .q_len = q_len, .kv_len = kv_len};
    OutputGradients own;
    const auto repeat = [&](const std::vector<double>& one) {
      std::vector<double> several;
      for (int i = 0; i <= b; ++i) several.insert(several.end(), one.begin(), one.end());
      return several;
    };
    dense.q = repeat(rows(packed.q, 2, 10, q_first, q_len, 8));
    dense.k = repeat(rows(packed.k, 1, 16, kv_first, kv_len, 8));
    dense.v = repeat(rows(packed.v, 1, 16, kv_first, kv_len, 16));
    own.d_o = repeat(rows(given.d_o, 2, 10, q_first, q_len, 16));
    own.d_lse = repeat(rows(given.d_lse, 2, 10, q_first, q_len, 1));
    dense.tensors[0] = {{kv_len}, rows(packed.tensors[0].values, 1, 16, kv_first, kv_len, 1)};
    const BackwardOracle one = oracle_backward(dense_spec, dense, own);
    const auto expect_same = [&](const Expected& mine, std::size_t at, const Expected& other,
                                 std::size_t count, std::size_t width) {
      for (std::size_t i = 0; i < count * width; ++i) {
        EXPECT_NEAR(mine.values[at * width + i],
                    other.values[other.values.size() - count * width + i], 1e-12)
            << mine.name << " " << b << " " << i;
      }
    };
    expect_same(all.dq, q_at, one.dq, static_cast<std::size_t>(2 * q_len), 8);
    expect_same(all.dk, k_at, one.dk, static_cast<std::size_t>(kv_len), 8);
    expect_same(all.dv, k_at, one.dv, static_cast<std::size_t>(kv_len), 16);
    for (std::size_t h = 0; h < 2; ++h) {
      EXPECT_NEAR(all.sink.values[static_cast<std::size_t>(b) * 2 + h],
                  one.sink.values[static_cast<std::size_t>(b) * 2 + h], 1e-12);
    }
    q_at += static_cast<std::size_t>(2 * q_len);
    k_at += static_cast<std::size_t>(kv_len);
  }
  EXPECT_EQ(all.sink.values[2], 0);
  EXPECT_EQ(all.tensors[0].values[15], 0);  // of no sequence
  EXPECT_NE(all.tensors[0].values[14], 0);
}

TEST(BackwardSample, HasRowsOfTheWhole) {
  const AttentionSpec spec = parsed(
      "head_dim: {qk: 8, v: 16}\nmask: causal and kv_idx != 3\ndropout: 0.25\n"
      "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\n"
      "score: score + slope[h] * (kv_idx - q_pos)\n");
  const ProblemShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 70, .kv_len = 50};
  const HostProblem problem = random_problem(spec, shape, 5);
  OutputGradients gradients = random_output_gradients(spec, shape, 6);
  const BackwardOracle whole = oracle_backward(spec, problem, gradients);
  const auto exact = oracle_forward(spec, problem);
  const HostOutput forward{values_of(exact.o), values_of(exact.lse)};
  const auto expect_rows = [](const Expected& some, const Expected& all, const auto& rows,
                              std::size_t width, const auto& index_of) {
    ASSERT_EQ(some.values.size(), rows.size() * width);
    for (std::size_t i = 0; i < some.values.size(); ++i) {
      const std::size_t at = index_of(rows[i / width]) * width + i % width;
      ASSERT_NEAR(some.values[i], all.values[at], 1e-9 * (1 + std::abs(all.values[at]))) << i;
      ASSERT_LE(some.limits[i], all.limits[at] * 1.5) << i;
    }
  };
  const auto query_index = [&](const Row& row) {
    return static_cast<std::size_t>((row.b * shape.heads + row.h) * shape.q_len + row.q_idx);
  };
  const auto key_index = [&](const KeyRow& row) {
    return static_cast<std::size_t>((row.b * shape.kv_heads + row.h_kv) * shape.kv_len +
                                    row.kv_idx);
  };
  for (const BackwardSample& sample :
       {stratified_sample(problem, 0, 16, 1), stratified_sample(problem, 0, 64, 2),
        BackwardSample{.queries = {{1, 3, 69}}, .keys = {}}, whole_sample(problem)}) {
    const BackwardOracle some = oracle_backward(spec, problem, forward, gradients, sample);
    expect_rows(some.dq, whole.dq, sample.queries, 8, query_index);
    expect_rows(some.dk, whole.dk, sample.keys, 8, key_index);
    expect_rows(some.dv, whole.dv, sample.keys, 16, key_index);
    const bool is_whole = sample.queries.size() == 2 * 4 * 70;
    ASSERT_EQ(some.tensors.size(), is_whole ? 1u : 0u);
    if (!is_whole) continue;
    for (std::size_t h = 0; h < 4; ++h)
      EXPECT_NEAR(some.tensors[0].values[h], whole.tensors[0].values[h], 1e-9);
  }
}

TEST(BackwardSample, HasBothEndsAndARowOfEveryBlock) {
  const ProblemShape shape{.heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 330};
  const BackwardSample sample = stratified_sample({.shape = shape}, 0, 64, 9);
  EXPECT_EQ(sample.queries.size(), 4u * 2);
  EXPECT_EQ(sample.keys.size(), 2u * 6);
  EXPECT_EQ(sample.keys.front().kv_idx, 0);
  EXPECT_EQ(sample.keys.back().kv_idx, 329);
  EXPECT_EQ(sample.keys.back().h_kv, 1);
}

// `offset`: added to keys and values, so that the terms of sums have one sign.
class Limits : public testing::TestWithParam<std::tuple<const char*, double>> {};

TEST_P(Limits, FitTheDtypesArithmetic) {
  const auto [dtype, offset] = GetParam();
  auto spec = parse_spec("attune: 1\nname: t\nhead_dim: 64\ndtype: " + std::string(dtype), "t");
  ASSERT_TRUE(spec.ok());
  HostProblem problem = random_problem(*spec, {.q_len = 96, .kv_len = 160}, 5);
  for (std::vector<double>* values : {&problem.k, &problem.v})
    for (double& value : *values) value = round_to(spec->dtype, value + offset);
  OutputGradients gradients = random_output_gradients(*spec, problem.shape, 6);
  gradients.d_lse.clear();
  const auto plain = plain_backward(*spec, problem, gradients);
  const BackwardOracle by_definition = oracle_backward(*spec, problem, gradients),
                       of_given = oracle_backward(*spec, problem, plain.forward, gradients,
                                                  whole_sample(problem));
  for (const BackwardOracle* oracle : {&by_definition, &of_given}) {
    EXPECT_THAT(judge(oracle->dq, plain.dq).worst, AllOf(Gt(0.1), Lt(1)));
    EXPECT_THAT(judge(oracle->dk, plain.dk).worst, AllOf(Gt(0.1), Lt(1)));
    EXPECT_THAT(judge(oracle->dv, plain.dv).worst, AllOf(Gt(0.1), Lt(1)));
  }
  // The key of which row 0 makes most.
  int key = 0;
  double largest = -std::numeric_limits<double>::infinity();
  for (int k = 0; k < 160; ++k) {
    double product = 0;
    for (std::size_t d = 0; d < 64; ++d)
      product += problem.q[d] * problem.k[static_cast<std::size_t>(k) * 64 + d];
    if (product > largest) largest = product, key = k;
  }
  const auto faulty = plain_backward(*spec, problem, gradients, key);
  for (const BackwardOracle* oracle : {&by_definition, &of_given}) {
    EXPECT_GT(judge(oracle->dq, faulty.dq).worst, 1);
    EXPECT_GT(judge(oracle->dk, faulty.dk).worst, 1);
    EXPECT_GT(judge(oracle->dv, faulty.dv).worst, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Backward, Limits,
                         testing::Combine(testing::Values("bf16", "fp16", "fp32\nprecision: tf32"),
                                          testing::Values(0.0, 2.0)));

// Where K is V, as in the numbers that the tuner times, what dO's rounding to tf32 makes of dP is
// no smaller a part of dQ for many keys than for one: it is of the definition, not an error that
// would average out.
TEST(LimitsOfTf32, HoldWhereKeysAreValues) {
  auto spec = parse_spec("attune: 1\nname: t\nhead_dim: 16\ndtype: fp32\nprecision: tf32\n", "t");
  ASSERT_TRUE(spec.ok());
  HostProblem problem = random_problem(*spec, {.q_len = 24, .kv_len = 4096}, 5);
  problem.v = problem.k;
  OutputGradients gradients = random_output_gradients(*spec, problem.shape, 6);
  gradients.d_lse.clear();
  const auto judged = [&](int faulty) {
    const auto plain = plain_backward(*spec, problem, gradients, faulty);
    const BackwardOracle oracle =
        oracle_backward(*spec, problem, plain.forward, gradients, whole_sample(problem));
    return std::max({judge(oracle.dq, plain.dq).worst, judge(oracle.dk, plain.dk).worst,
                     judge(oracle.dv, plain.dv).worst});
  };
  EXPECT_THAT(judged(-1), AllOf(Gt(0.1), Lt(0.85)));
  // One of 4096 keys, left out of one row.
  EXPECT_GT(judged(2000), 1);
}

}  // namespace
}  // namespace attune
