// Look-ups along dims that are computed from a size: an index that counts as proven lies inside at
// every length, others are clamped.
#include <gtest/gtest.h>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/parser.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

Environment environment_of(const DimSize& dim) {
  return {.scalars = {{.name = "n", .type = Type::kInt32}},
          .tensors = {{.name = "t", .type = TensorType::kInt32, .dims = {dim}}}};
}

constexpr DimSize kBlocks = {.dim = Dim::kQLen, .offset = 7, .divisor = 8};  // rounded up
constexpr DimSize kHalf = {.dim = Dim::kQLen, .divisor = 2};
constexpr DimSize kDistances = {.dim = Dim::kKvLen, .factor = 2, .offset = -1};
constexpr DimSize kOneMore = {.dim = Dim::kKvLen, .offset = 1};
constexpr DimSize kFewer = {.dim = Dim::kQLen, .offset = -3};
constexpr DimSize kThirds = {.dim = Dim::kQLen, .factor = 4, .offset = 2, .divisor = 3};
constexpr DimSize kBatches = {.dim = Dim::kBatch, .offset = 1};

struct Proof {
  DimSize dim;
  std::string_view index;
  bool proven;
};
constexpr Proof kProofs[] = {
    {kBlocks, "q_idx // 8", true},
    {kBlocks, "q_idx // 9", true},
    {kBlocks, "q_idx // 8 // 2", true},
    {kBlocks, "q_idx >> 3", true},
    {kBlocks, "q_idx // 4 // 2", false},  // it is: the quotient of a quotient is not looked into
    {kBlocks, "q_idx // 7", false},
    {kBlocks, "q_idx >> 2", false},
    {kBlocks, "q_idx // 8 + 1", false},
    {kBlocks, "(q_idx + 1) // 8", false},
    {kBlocks, "q_idx", false},
    {kBlocks, "kv_idx // 8", false},
    {kBlocks, "q_idx // n", false},
    {kBlocks, "min(q_idx // 8, kv_idx)", true},
    {kHalf, "q_idx // 2", false},  // of an odd length
    {kHalf, "max(q_idx - 1, 0) // 2", false},
    {kHalf, "0", true},
    {kDistances, "kv_idx", true},
    {kDistances, "kv_idx + 1", false},
    {kDistances, "kv_idx + kv_idx", false},
    {kDistances, "kv_len", false},
    {kDistances, "n % kv_len", true},
    {kOneMore, "kv_idx", true},
    {kOneMore, "kv_idx + 1", true},
    {kOneMore, "1 + kv_idx", true},
    {kOneMore, "kv_idx + 2", false},
    {kOneMore, "kv_len", false},
    {kFewer, "q_idx", false},
    {kFewer, "q_idx // 2", false},
    {kThirds, "q_idx", true},
    {kThirds, "q_idx % 100", true},
    {kThirds, "(q_idx + 2) // 3", true},
    {kBatches, "b + 1", true},
    {kBatches, "b", true},
};

TEST(LookUpProofs, OfComputedDims) {
  for (const Proof& proof : kProofs) {
    const Environment environment = environment_of(proof.dim);
    const auto parsed =
        parse("t[" + std::string(proof.index) + "] == 1", environment, Role::kMask, {});
    ASSERT_TRUE(parsed.ok()) << render(parsed.error());
    const Expr look_up = (*parsed)->args[0];
    EXPECT_EQ(look_up->clamped, proof.proven ? 0u : 1u) << proof.index;
    EXPECT_EQ(prove_index(look_up->args[0], proof.dim),
              proof.proven ? IndexProof::kInside : IndexProof::kUnknown);
  }
}

TEST(LookUpProofs, HoldAtEveryLength) {
  const double scalars[] = {1000003};
  for (const Proof& proof : kProofs) {
    if (!proof.proven) continue;
    const auto parsed = parse("t[" + std::string(proof.index) + "] == 1", environment_of(proof.dim),
                              Role::kMask, {});
    ASSERT_TRUE(parsed.ok()) << render(parsed.error());
    const Expr& index = (*parsed)->args[0]->args[0];
    Point point;
    point.scalars = scalars;
    for (int length = 1; length < 50; ++length) {
      const std::int64_t elements = proof.dim.elements(length);
      point.q_len = point.kv_len = length;
      for (int at = 0; at < length; ++at) {
        point.b = point.q_idx = point.kv_idx = at;
        const double found = evaluate(index, point);
        ASSERT_TRUE(0 <= found && found < static_cast<double>(elements))
            << proof.index << " at " << at << " of " << length;
      }
    }
  }
}

// Of packed sequences a length is the own one, and the size is of all of them.
TEST(LookUpProofs, OfPackedSequencesCountInTheOwnOne) {
  Environment environment = environment_of(kBlocks);
  environment.is_packed = true;
  auto parsed = parse("t[q_idx // 8] == t[kv_len]", environment, Role::kMask, {});
  ASSERT_TRUE(parsed.ok()) << render(parsed.error());
  EXPECT_EQ(print(*parsed, environment), "t[q_idx // 8] == t[kv_len]");
  environment.tensors[0].dims[0] = {.dim = Dim::kQLen};
  parsed = parse("t[q_idx] == 1", environment, Role::kMask, {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->args[0]->args[0]->op, Op::kAdd);  // the tokens before come on top
}

}  // namespace
}  // namespace attune::expr
