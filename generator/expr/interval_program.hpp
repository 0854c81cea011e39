// The straight-line program that interval analysis becomes. The host runs it, a kernel carries it
// as text; both come from these steps, so they cannot diverge.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "generator/expr/ast.hpp"
#include "generator/expr/intervals.hpp"

namespace attune::expr {

enum class StepOp : std::uint8_t {
  // Leaves.
  kInt,   // value
  kReal,  // real
  kBool,  // value
  kQFirst,
  kQLast,
  kKvFirst,
  kKvLast,   // the box, ends inclusive
  kUniform,  // expression, the same at every point of the box; of any type
  // int64, exact: no step's value leaves int64.
  kAdd,
  kSubtract,
  kMultiply,
  kFloorDivide /* 0 for a zero divisor */,
  kMin,
  kMax,
  kNarrow,  // args[0] to int32, dropping high bits
  // Reals: double on the host, float32 in a kernel. NaN is propagated.
  kToReal,
  kRealAdd,
  kRealSubtract,
  kRealMultiply,
  kRealDivide,
  kRealPower,
  kRealMin,
  kRealMax,
  kRealNegate,
  kRealFunction,  // function
  kWidenDown,
  kWidenUp,  // by kRoundoff, or by kCoarse when value is 1
  kFloorToInt,
  // Bools. Comparisons of reals are false when NaN takes part.
  kLess,
  kLessEqual,
  kEqual,
  kRealLess,
  kRealLessEqual,
  kAnd,
  kOr,
  kNot,
  kSelect,  // condition, then, otherwise; of any kind
  // Least and greatest value of tensor `slot` (of type `element`) over a box of indices: args are
  // first, last of each dim. value is 1 when the pre-pass serves it.
  kTensorRange,
  kRangeLo,
  kRangeHi,  // of a kTensorRange
};

enum class StepKind : std::uint8_t { kInt, kReal, kBool, kPair };

using StepId = int;

struct Step {
  StepOp op = StepOp::kInt;
  StepKind kind = StepKind::kInt;
  std::vector<StepId> args;
  std::int64_t value = 0;
  double real = 0;
  Op function = Op::kExp;
  int slot = -1;
  Type element = Type::kInt32;
  Expr expression;
  // What is known of an int step for every legal launch.
  std::int64_t lo = 0, hi = 0;
  bool wide = false;  // an int step that needs 64 bits, or whose operands do
};

// Relative and absolute error that covers one float32 operation in any rounding or contraction, and
// one of the GPU's approximate functions.
struct Roundoff {
  double relative, absolute;
};
constexpr Roundoff kRoundoff = {0x1p-18, 0x1p-100};
constexpr Roundoff kCoarse = {0x1p-8, 0x1p-20};

// Steps in order: each uses only those before it. Equal steps are made once, and what is known
// before the launch is folded.
class IntervalProgram {
 public:
  const std::vector<Step>& steps() const { return steps_; }
  const Step& operator[](StepId id) const { return steps_[static_cast<std::size_t>(id)]; }

  StepId integer(std::int64_t value);
  StepId real(double value);
  StepId boolean(bool value);
  StepId box_end(StepOp which);  // kQFirst ... kKvLast
  StepId uniform(const Expr& expression);

  StepId add(StepId a, StepId b);
  StepId subtract(StepId a, StepId b);
  StepId multiply(StepId a, StepId b);
  StepId floor_divide(StepId a, StepId b);
  StepId min(StepId a, StepId b);
  StepId max(StepId a, StepId b);
  StepId narrow(StepId a);

  StepId real_step(StepOp op, std::vector<StepId> args);
  StepId real_function(Op function, StepId a);
  StepId widen(StepOp op, StepId a, bool coarse);
  StepId floor_to_int(StepId a);

  StepId less(StepId a, StepId b);
  StepId less_equal(StepId a, StepId b);
  StepId equals(StepId a, StepId b);
  StepId real_less(StepId a, StepId b);
  StepId real_less_equal(StepId a, StepId b);
  StepId both(StepId a, StepId b);
  StepId either(StepId a, StepId b);
  StepId negation(StepId a);
  StepId select(StepId condition, StepId then, StepId otherwise);

  StepId tensor_range(int slot, Type element, bool from_blocks, std::vector<StepId> box);
  StepId range_end(StepOp which, StepId range);

  bool is_constant(StepId id, std::int64_t value) const;

 private:
  StepId append(Step step);
  // x when the step is 0 - x.
  std::optional<StepId> negated_operand(StepId id) const;
  StepId binary(StepOp op, StepId a, StepId b, std::int64_t lo, std::int64_t hi);

  std::vector<Step> steps_;
  std::unordered_multimap<std::size_t, StepId> known_;
};

// One value of each step.
struct StepValue {
  std::int64_t integer = 0;  // bools too
  double real = 0;
  RealInterval range;  // kTensorRange
};
std::vector<StepValue> run(const IntervalProgram& program, const TileBox& box);
// That of one step; `values` holds those of its args.
StepValue value_of(const Step& step, const TileBox& box, const std::vector<StepValue>& values);

}  // namespace attune::expr
