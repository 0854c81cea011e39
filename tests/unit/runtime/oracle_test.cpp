#include "runtime/reference/oracle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "runtime/reference/philox.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

expr::Expr variable(expr::Variable which) {
  return std::make_shared<expr::Node>(
      expr::Node{.op = expr::Op::kVariable, .type = expr::Type::kInt32, .variable = which});
}
expr::Expr number(double value) {
  return std::make_shared<expr::Node>(
      expr::Node{.op = expr::Op::kFloat, .type = expr::Type::kFloat32, .float_value = value});
}
expr::Expr binary(expr::Op op, expr::Type type, expr::Expr a, expr::Expr b) {
  return std::make_shared<expr::Node>(
      expr::Node{.op = op, .type = type, .args = {std::move(a), std::move(b)}});
}

// One query of one head and two keys; scores 0 and ln 3, values 1 and 5.
struct Tiny {
  AttentionSpec spec;
  HostProblem problem;
  Tiny() {
    spec.dtype = DType::kF32;
    spec.head_dim_qk = spec.head_dim_v = 1;
    spec.softmax_scale.value = 0.5;
    problem.shape = {.q_len = 1, .kv_len = 2};
    problem.q = {2};
    problem.k = {0, std::log(3)};
    problem.v = {1, 5};
  }
};

TEST(Oracle, WeighsValuesBySoftmax) {
  const Tiny t;
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_THAT(out.o.values, ElementsAre(DoubleNear(4, 1e-12)));
  EXPECT_THAT(out.lse.values, ElementsAre(DoubleNear(std::log(4), 1e-12)));
}

TEST(Oracle, ASinkJoinsTheDenominatorOnly) {
  Tiny t;
  t.spec.sink = number(std::log(4));
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_THAT(out.o.values, ElementsAre(DoubleNear(2, 1e-12)));
  EXPECT_THAT(out.lse.values, ElementsAre(DoubleNear(std::log(8), 1e-12)));
}

TEST(Oracle, AMaskedKeyDoesNotCountEvenWhenItIsNan) {
  Tiny t;
  t.spec.mask = binary(expr::Op::kLessEqual, expr::Type::kBool, variable(expr::Variable::kKvIdx),
                       variable(expr::Variable::kQIdx));
  t.problem.k[1] = kNan;
  t.problem.v[1] = kNan;
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_THAT(out.o.values, ElementsAre(1));
  EXPECT_THAT(out.lse.values, ElementsAre(0));
}

TEST(Oracle, ARowWithoutLiveKeyIsZero) {
  Tiny t;
  t.spec.mask = binary(expr::Op::kLess, expr::Type::kBool, variable(expr::Variable::kKvIdx),
                       variable(expr::Variable::kQIdx));
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_THAT(out.o.values, ElementsAre(0));
  EXPECT_THAT(out.lse.values, ElementsAre(-kInfinity));
}

TEST(Oracle, AKeyWhoseScoreIsMinusInfinityIsDead) {
  Tiny t;
  t.spec.score = number(-kInfinity);
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_THAT(out.o.values, ElementsAre(0));
  EXPECT_THAT(out.lse.values, ElementsAre(-kInfinity));
}

TEST(Oracle, ALiveNanMakesTheRowNan) {
  Tiny t;
  t.problem.k[0] = kNan;
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_TRUE(std::isnan(out.o.values[0]));
  EXPECT_TRUE(std::isnan(out.lse.values[0]));
}

TEST(Oracle, QueryHeadsShareAKeyHeadInOrder) {
  Tiny t;
  t.problem.shape = {.heads = 4, .kv_heads = 2, .q_len = 1, .kv_len = 1};
  t.problem.q = {1, 1, 1, 1};
  t.problem.k = {0, 0};
  t.problem.v = {7, 9};
  EXPECT_THAT(oracle_forward(t.spec, t.problem).o.values, ElementsAre(7, 7, 9, 9));
}

TEST(Oracle, DroppedKeysStayInTheSumAndTheRestIsScaled) {
  Tiny t;
  t.spec.dropout.value = 0.5;
  std::uint64_t seed = 0;
  while (dropped(seed, 0, 128, 1, 0, 0, 0, 0) || !dropped(seed, 0, 128, 1, 0, 0, 0, 1)) ++seed;
  t.problem.dropout_seed = seed;
  const ForwardOracle out = oracle_forward(t.spec, t.problem);
  EXPECT_THAT(out.o.values, ElementsAre(DoubleNear(0.25 * 1 * 2, 1e-12)));
  EXPECT_THAT(out.lse.values, ElementsAre(DoubleNear(std::log(4), 1e-12)));
}

TEST(Oracle, ChosenRowsAreThoseOfTheWhole) {
  Tiny t;
  const ProblemShape shape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 7};
  t.spec.head_dim_qk = t.spec.head_dim_v = 3;
  const HostProblem problem = random_problem(t.spec, shape, 1);
  const ForwardOracle all = oracle_forward(t.spec, problem);
  const ForwardOracle some = oracle_forward(t.spec, problem, {{1, 2, 3}});
  const std::size_t row = (1 * 4 + 2) * 5 + 3;
  EXPECT_EQ(some.lse.values[0], all.lse.values[row]);
  const auto& o = all.o.values;
  EXPECT_THAT(some.o.values, ElementsAre(o[3 * row], o[3 * row + 1], o[3 * row + 2]));
}

TEST(Oracle, APackedSequenceIsTheProblemOfItsOwn) {
  const auto parse = [](const char* layout) {
    return parse_spec(std::string("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\ndropout: 0.25\n"
                                  "tensors: {cut: {dtype: int32, dims: [batch]}}\n"
                                  "mask: causal and kv_idx != cut[b]\nlayout: ") +
                          layout,
                      "");
  };
  const auto packed_spec = parse("thd"), dense_spec = parse("bshd");
  ASSERT_TRUE(packed_spec.ok() && dense_spec.ok());
  const ProblemShape shape{.batch = 3, .heads = 2, .kv_heads = 1, .q_len = 20, .kv_len = 30};
  HostProblem packed = random_problem(*packed_spec, shape, 3);
  packed.tensors[0].values = {2, 5, 1};
  packed.sequences = {
      .cu_q = {0, 4, 4, 15}, .cu_kv = {0, 7, 9, 25}, .used_q = {3, 0, 9}, .used_kv = {7, 0, 12}};
  const ForwardOracle all = oracle_forward(*packed_spec, packed, all_rows(packed));
  ASSERT_EQ(all.lse.values.size(), 2u * (3 + 0 + 9));
  std::size_t next = 0;
  for (const int b : {0, 2}) {
    // As sequence b of a dense batch, of which the others are never looked at.
    HostProblem dense = packed;
    dense.sequences = {};
    dense.shape.q_len = packed.sequences.q_len(b);
    dense.shape.kv_len = packed.sequences.kv_len(b);
    const auto slice = [&](const std::vector<double>& from, std::int64_t heads,
                           std::int64_t all_rows, std::int64_t first, std::int64_t count) {
      std::vector<double> to(static_cast<std::size_t>(3 * heads * count * 8));
      for (std::int64_t h = 0; h < heads; ++h) {
        std::copy_n(from.begin() + (h * all_rows + first) * 8, count * 8,
                    to.begin() + (b * heads + h) * count * 8);
      }
      return to;
    };
    const std::int64_t q_first = packed.sequences.q_first(b), q_len = dense.shape.q_len;
    const std::int64_t kv_first = packed.sequences.kv_first(b), kv_len = dense.shape.kv_len;
    dense.q = slice(packed.q, 2, 20, q_first, q_len);
    dense.k = slice(packed.k, 1, 30, kv_first, kv_len);
    dense.v = slice(packed.v, 1, 30, kv_first, kv_len);
    std::vector<Row> rows = all_rows(dense);
    std::erase_if(rows, [&](const Row& row) { return row.b != b; });
    const ForwardOracle own = oracle_forward(*dense_spec, dense, rows);
    for (std::size_t i = 0; i < rows.size(); ++i, ++next) {
      EXPECT_EQ(all.lse.values[next], own.lse.values[i]);
      for (std::size_t d = 0; d < 8; ++d) {
        EXPECT_EQ(all.o.values[8 * next + d], own.o.values[8 * i + d]);
      }
    }
  }
}

TEST(Oracle, ATensorOfAllTokensIsIndexedByTheSequencesOwn) {
  const auto parse = [](const char* layout) {
    return parse_spec(
        std::string(
            "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\n"
            "tensors: {doc: {dtype: int32, dims: [kv_len]},\n"
            "          bias: {dtype: float32, dims: [heads, q_len]}}\n"
            "mask: doc[q_pos - 1] == doc[kv_idx]\nscore: score + bias[h, q_idx]\nlayout: ") +
            layout,
        "");
  };
  const auto packed_spec = parse("thd"), dense_spec = parse("bshd");
  ASSERT_TRUE(packed_spec.ok() && dense_spec.ok());
  const ProblemShape shape{.batch = 2, .heads = 1, .kv_heads = 1, .q_len = 9, .kv_len = 14};
  HostProblem packed = random_problem(*packed_spec, shape, 3);
  packed.tensors[1].values = {0, 0, 1, 1, 1, 3, 3, 0, 0, 0, 0, 1, 1, 1};  // slots go by name
  packed.sequences = {.cu_q = {0, 4, 9}, .cu_kv = {0, 6, 14}};
  const ForwardOracle all = oracle_forward(*packed_spec, packed, all_rows(packed));
  std::size_t next = 0;
  for (const int b : {0, 1}) {
    const auto part = [](const std::vector<double>& values, std::int64_t first, std::int64_t count,
                         std::int64_t dim) {
      return std::vector<double>(values.begin() + first * dim,
                                 values.begin() + (first + count) * dim);
    };
    const std::int64_t q_first = packed.sequences.q_first(b), q_len = packed.sequences.q_len(b);
    const std::int64_t kv_first = packed.sequences.kv_first(b), kv_len = packed.sequences.kv_len(b);
    HostProblem dense = packed;
    dense.sequences = {};
    dense.shape = {.q_len = q_len, .kv_len = kv_len};
    dense.q = part(packed.q, q_first, q_len, 8);
    dense.k = part(packed.k, kv_first, kv_len, 8);
    dense.v = part(packed.v, kv_first, kv_len, 8);
    dense.tensors[0] = {{1, q_len}, part(packed.tensors[0].values, q_first, q_len, 1)};
    dense.tensors[1] = {{kv_len}, part(packed.tensors[1].values, kv_first, kv_len, 1)};
    const ForwardOracle own = oracle_forward(*dense_spec, dense);
    for (const double lse : own.lse.values) EXPECT_EQ(all.lse.values[next++], lse);
  }
  EXPECT_EQ(next, all.lse.values.size());
}

TEST(RandomProblem, PackedSequencesSumToTheTotals) {
  const auto spec = parse_spec("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nlayout: thd\n", "");
  ASSERT_TRUE(spec.ok());
  const ProblemShape shape{.batch = 9, .heads = 2, .kv_heads = 1, .q_len = 50, .kv_len = 70};
  const HostProblem problem = random_problem(*spec, shape, 1);
  EXPECT_EQ(problem.q.size(), 2u * 50 * 8);
  EXPECT_EQ(problem.k.size(), 70u * 8);
  for (const auto& [cu, total] :
       {std::pair(problem.sequences.cu_q, 50), {problem.sequences.cu_kv, 70}}) {
    ASSERT_EQ(cu.size(), 10u);
    EXPECT_EQ(cu.front(), 0);
    EXPECT_EQ(cu.back(), total);
    EXPECT_TRUE(std::ranges::is_sorted(cu));
  }
  EXPECT_EQ(all_rows(problem).size(), 2u * 50);
  EXPECT_EQ(sample_rows(problem, 7, 1).size(), 7u);
}

// The same keys, in pages and in a row.
TEST(Oracle, PagedKeysAreThoseThatTheTableNames) {
  const auto parse = [](const char* layout) {
    return parse_spec(
        std::string("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nmask: causal\nlayout: ") +
            layout + "\n",
        "");
  };
  const auto paged_spec = parse("paged"), dense_spec = parse("bshd");
  ASSERT_TRUE(paged_spec.ok() && dense_spec.ok());
  const ProblemShape shape{.batch = 3, .heads = 4, .kv_heads = 2, .q_len = 9, .kv_len = 40};
  const HostProblem paged = random_problem(*paged_spec, shape, 3);
  const HostPages& pages = paged.pages;
  EXPECT_EQ(pages.size, 16);
  EXPECT_EQ(pages.per_sequence, 3);
  EXPECT_EQ(paged.sequences.kv_len(0), 40);
  const ForwardOracle all = oracle_forward(*paged_spec, paged, all_rows(paged));
  std::size_t at = 0;
  for (int b = 0; b < 3; ++b) {
    HostProblem dense = paged;
    dense.sequences = {};
    dense.pages = {};
    dense.shape = {.batch = 1,
                   .heads = 4,
                   .kv_heads = 2,
                   .q_len = paged.sequences.q_len(b),
                   .kv_len = paged.sequences.kv_len(b)};
    const auto gathered = [&](const std::vector<double>& values) {
      std::vector<double> rows;
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t key = 0; key < dense.shape.kv_len; ++key) {
          const auto first =
              values.begin() + ((pages.page_of(b, key) * 2 + h) * pages.size + key % 16) * 8;
          rows.insert(rows.end(), first, first + 8);
        }
      }
      return rows;
    };
    dense.k = gathered(paged.k);
    dense.v = gathered(paged.v);
    dense.q.clear();
    for (std::int64_t h = 0; h < 4; ++h) {
      const auto first = paged.q.begin() + (h * 9 + paged.sequences.q_first(b)) * 8;
      dense.q.insert(dense.q.end(), first, first + dense.shape.q_len * 8);
    }
    const ForwardOracle one = oracle_forward(*dense_spec, dense, all_rows(dense));
    for (const double value : one.o.values) EXPECT_EQ(all.o.values[at++], value);
  }
  EXPECT_EQ(at, all.o.values.size());
}

TEST(RandomProblem, WhatNoKeyLiesInIsNaN) {
  const auto spec = parse_spec("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nlayout: paged\n", "");
  ASSERT_TRUE(spec.ok());
  const ProblemShape shape{.batch = 5, .heads = 2, .kv_heads = 2, .q_len = 5, .kv_len = 70};
  const HostProblem problem = random_problem(*spec, shape, 1);
  std::int64_t keys = 0;
  for (int b = 0; b < 5; ++b) {
    EXPECT_EQ(problem.sequences.q_len(b), 1);
    EXPECT_LE(problem.sequences.kv_len(b), 70);
    keys += problem.sequences.kv_len(b);
  }
  const auto numbers = [](const std::vector<double>& values) {
    return std::ranges::count_if(values, [](double x) { return x == x; });
  };
  EXPECT_EQ(numbers(problem.k), keys * 2 * 8);
  EXPECT_EQ(numbers(problem.v), keys * 2 * 8);
  EXPECT_GT(problem.k.size(), static_cast<std::size_t>(keys * 2 * 8));
}

// Every number of pages, and every row in each of them.
TEST(PageTable, DividesExactly) {
  for (const std::int64_t size : {1, 2, 3, 5, 7, 16, 48, 64, 100, 255, 256, 65535, 1 << 28}) {
    const att::PageTable table = page_table_of(nullptr, {1, size, 1});
    const auto page_of = [&](std::int64_t key) {
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(key) * table.multiplier >>
                                       table.shift);
    };
    for (std::int64_t page : {0, 1, 2, 1000, 123456}) {
      const std::int64_t first = page * size;
      if (first + size > std::int64_t{1} << 31) continue;
      EXPECT_EQ(page_of(first), page) << size;
      EXPECT_EQ(page_of(first + size - 1), page) << size;
    }
    const std::int64_t last = (std::int64_t{1} << 31) - 1;
    EXPECT_EQ(page_of(last), last / size) << size;
    for (std::int64_t multiple = last / size; multiple > last / size - 3 && multiple > 0;
         --multiple) {
      EXPECT_EQ(page_of(multiple * size), multiple) << size;
      EXPECT_EQ(page_of(multiple * size - 1), multiple - 1) << size;
    }
  }
}

TEST(SampleRows, AreDifferentAndHoldBothEnds) {
  const auto rows = sample_rows({.batch = 2, .heads = 2, .q_len = 1000, .kv_len = 1}, 50, 3);
  ASSERT_EQ(rows.size(), 50u);
  bool first = false;
  bool last = false;
  for (const Row& row : rows) {
    first |= row.q_idx == 0;
    last |= row.q_idx == 999;
  }
  EXPECT_TRUE(first && last);
}

TEST(StratifiedRows, MeetEverySixteenQueriesOfEveryHead) {
  const ProblemShape shape = {.batch = 2, .heads = 3, .q_len = 100, .kv_len = 50};
  const auto rows = stratified_rows(shape, 0, 3);
  EXPECT_EQ(rows.size(), 2u * 3 * 7);
  std::set<std::tuple<int, int, int>> blocks;
  for (const Row& row : rows) blocks.emplace(row.b, row.h, row.q_idx / 16);
  EXPECT_EQ(blocks.size(), rows.size());
  const auto others = stratified_rows(shape, 0, 4);
  EXPECT_FALSE(std::ranges::equal(rows, others, {}, &Row::q_idx, &Row::q_idx));
  EXPECT_EQ(stratified_rows(shape, 50 * 2 * 3 * 7 * 2, 3).size(), 2u * 2 * 3 * 7);
  EXPECT_EQ(stratified_rows(shape, 1 << 20, 3).size(), 600u) << "all where they are affordable";
}

TEST(RoundTo, TiesToEvenAndOverflow) {
  EXPECT_EQ(round_to(DType::kBf16, 1 + 1.0 / 256), 1);
  EXPECT_EQ(round_to(DType::kBf16, 1 + 3.0 / 256), 1 + 4.0 / 256);
  EXPECT_EQ(round_to(DType::kF16, 65519), 65504);
  EXPECT_EQ(round_to(DType::kF16, 65520), kInfinity);
  EXPECT_EQ(round_to(DType::kF16, std::ldexp(1, -24) * 1.5), std::ldexp(1, -23));
  EXPECT_EQ(round_to(DType::kF16, std::ldexp(1, -25)), 0);
  EXPECT_EQ(round_to(DType::kFp8E4m3, 449), 448);
  EXPECT_TRUE(std::isnan(round_to(DType::kFp8E4m3, -500)));
}

// Known answers of Random123 1.14 (kat_vectors).
TEST(Philox, KnownAnswers) {
  constexpr std::array<std::uint32_t, 4> kPi = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  constexpr std::array<std::uint32_t, 2> kPiKey = {0xa4093822, 0x299f31d0};
  EXPECT_THAT((philox4x32<10>({0, 0, 0, 0}, {0, 0})),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT((philox4x32<10>({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u})),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT((philox4x32<10>(kPi, kPiKey)),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
  EXPECT_THAT((philox4x32<7>({0, 0, 0, 0}, {0, 0})),
              ElementsAre(0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48));
}

TEST(Dropout, DropsAboutItsShareAndDependsOnEveryCoordinate) {
  int count = 0;
  for (int q = 0; q < 128; ++q) {
    for (int k = 0; k < 128; ++k) count += dropped(1, 2, 64, 4, 1, 2, q, k) ? 1 : 0;
  }
  EXPECT_NEAR(count, 128 * 128 / 4, 250);  // 4.5 standard deviations
  const auto pattern = [](std::uint64_t seed, std::uint64_t offset, int b, int h, int q0) {
    std::vector<bool> bits;
    for (int i = 0; i < 64; ++i) bits.push_back(dropped(seed, offset, 128, 4, b, h, q0, i));
    return bits;
  };
  const auto base = pattern(1, 2, 0, 0, 0);
  EXPECT_NE(base, pattern(2, 2, 0, 0, 0));
  EXPECT_NE(base, pattern(1ull << 32 | 1, 2, 0, 0, 0));
  EXPECT_NE(base, pattern(1, 3, 0, 0, 0));
  EXPECT_NE(base, pattern(1, 1ull << 32 | 2, 0, 0, 0));
  EXPECT_NE(base, pattern(1, 2, 1, 0, 0));
  EXPECT_NE(base, pattern(1, 2, 0, 1, 0));
  EXPECT_NE(base, pattern(1, 2, 0, 0, 1));
  EXPECT_NE(base, pattern(1, 2, 0, 0, 8));
}

TEST(Dropout, NoTwoKeysAndNoTwoQueriesShareTheirBits) {
  std::set<std::vector<bool>> keys, queries;
  for (int i = 0; i < 96; ++i) {
    std::vector<bool> key, query;
    for (int j = 0; j < 96; ++j) {
      key.push_back(dropped(1, 2, 128, 4, 1, 2, j, i));
      query.push_back(dropped(1, 2, 128, 4, 1, 2, i, j));
    }
    EXPECT_TRUE(keys.insert(key).second) << "key " << i;
    EXPECT_TRUE(queries.insert(query).second) << "query " << i;
  }
}

// Part of the contract: who goes on training with a later version drops the same elements.
TEST(Dropout, BitsNeverChange) {
  std::uint32_t bits = 0;
  for (int k = 0; k < 32; ++k) bits |= dropped(1, 2, 128, 4, 1, 2, 37, 64 + k) ? 1u << k : 0;
  EXPECT_EQ(bits, 0x18B423D2u);
}

}  // namespace
}  // namespace attune
