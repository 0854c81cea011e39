// What is said of one residue's sequences is what is said of whole ones.
#include "generator/expr/residues.hpp"

#include <gtest/gtest.h>

#include "generator/expr/build.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

struct Residues {
  World whole;
  int modulus;

  Residues(const Tape& data, int modulus) : whole(random_world(data, 24)), modulus(modulus) {
    whole.q_len = (whole.q_len + modulus - 1) / modulus * modulus;
    whole.kv_len = (whole.kv_len + modulus - 1) / modulus * modulus;
  }

  // What a kernel of residues knows at query q_idx and key kv_idx of the whole sequence, which
  // leave the same remainder.
  Point point_of_part(int q_idx, int kv_idx) const {
    Point point = whole.point(q_idx / modulus, kv_idx / modulus, 0.5);
    point.b = whole.b * modulus + q_idx % modulus;
    point.q_len = whole.q_len / modulus;
    point.kv_len = whole.kv_len / modulus;
    return point;
  }
};

void expect_same(const Expr& tree, const Tape& data, int modulus) {
  const Expr of_part = by_residues(tree, modulus);
  const Residues residues(data, modulus);
  for (int q = 0; q < residues.whole.q_len; ++q) {
    for (int k = q % modulus; k < residues.whole.kv_len; k += modulus) {
      const double expected = evaluate(tree, residues.whole.point(q, k, 0.5));
      RC_ASSERT(evaluate(of_part, residues.point_of_part(q, k)) == expected);
    }
  }
}

TEST(Residues, MasksSayTheSameOfThem) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    expect_same(rebuilt(RandomExpression(expression, {}).boolean(5)), data,
                *rc::gen::inRange(2, 9));
  }));
}

// Comparisons in which remainders cancel, which are divided.
TEST(Residues, OrdersOfPositionsSayTheSameOfThem) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    const Expr distance =
        make_binary(Op::kSubtract, make_variable(Variable::kQIdx), make_variable(Variable::kKvIdx));
    const Expr limit = make_int(*rc::gen::inRange(-20, 20));
    const Op op = *rc::gen::element(Op::kEqual, Op::kNotEqual, Op::kLess, Op::kLessEqual,
                                    Op::kGreater, Op::kGreaterEqual);
    const Expr side = *rc::gen::arbitrary<bool>() ? make_unary(Op::kAbs, distance) : distance;
    const Expr order =
        *rc::gen::arbitrary<bool>() ? make_binary(op, side, limit) : make_binary(op, limit, side);
    const int modulus = *rc::gen::inRange(2, 9);
    expect_same(order, data, modulus);
    expect_same(rebuilt(RandomExpression(expression, {}).affine_order(true)), data, modulus);
  }));
}

TEST(Residues, FormIsTheMask) {
  EXPECT_TRUE(rc::check([] {
    const Tape expression = *any_tape(), data = *any_tape();
    const int modulus = *rc::gen::inRange(2, 9);
    const auto remainder = [&](Variable variable) {
      return make_binary(Op::kModulo, make_variable(variable), make_int(modulus));
    };
    const Expr same =
        make_binary(Op::kEqual, remainder(Variable::kQIdx), remainder(Variable::kKvIdx));
    const Expr rest = rebuilt(RandomExpression(expression, {}).boolean(4));
    const Expr mask = make_binary(Op::kAnd, rest, same);
    const auto form = residue_form(mask);
    if (!form) {  // the rest is false
      RC_ASSERT(is_constant(mask));
      return;
    }
    const Residues residues(data, modulus);
    if (form->modulus != modulus) return;  // the rest has a larger one
    for (int q = 0; q < residues.whole.q_len; ++q) {
      for (int k = 0; k < residues.whole.kv_len; ++k) {
        const Point point = residues.whole.point(q, k, 0.5);
        const bool rest_holds = form->rest == nullptr || evaluate(form->rest, point) != 0;
        RC_ASSERT((evaluate(mask, point) != 0) == (rest_holds && q % modulus == k % modulus));
      }
    }
  }));
}

}  // namespace
}  // namespace attune::expr
