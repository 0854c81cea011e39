// The typed expression tree that a spec's `mask`, `score` and `sink` become. Everything downstream
// (evaluator, intervals, emitters, oracle) reads this tree and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generator/support/error.hpp"

namespace attune::expr {

enum class Type : std::uint8_t { kInt32, kFloat32, kBool };

// Values that every kernel knows. kScore is the scaled product of one query and one key.
enum class Variable : std::uint8_t {
  kScore,
  kBatch,   // b
  kHead,    // h
  kKvHead,  // h_kv
  kQIdx,    // q_idx
  kKvIdx,   // kv_idx
  kQLen,    // q_len
  kKvLen,   // kv_len
  // Of packed sequences, the tokens before the own one's. No expression names them: look-ups of
  // tensors along all tokens are made with them.
  kQFirst,
  kKvFirst,
};

enum class Op : std::uint8_t {
  // Leaves.
  kInt,       // int_value
  kFloat,     // float_value
  kBool,      // int_value is 0 or 1
  kVariable,  // variable; of a position or length, int_value is 0 or as make_part_variable's part
  kScalar,    // a launch-time scalar; slot indexes Environment::scalars
  kLoad,      // slot indexes Environment::tensors; args are the int32 indices, one a dim
  // Unary.
  kNegate,
  kNot,
  kToFloat,
  kAbs,
  kExp,
  kExp2,
  kLog,
  kLog2,
  kSqrt,
  kTanh,
  kSigmoid,
  kSoftplus,  // log(1 + exp(x))
  kSin,
  kCos,
  kErf,
  kFloor,  // float32 -> int32
  // Binary. Arithmetic takes two int32 or two float32, kDivide and kPower two float32, the floor
  // pair two int32; comparisons take two of one type and give bool; of two bools there are kEqual
  // and kNotEqual.
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kMin,
  kMax,
  kPower,  // x^y as IEEE 754 and std::pow have it
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kAnd,
  kOr,
  // Two int32.
  kShiftLeft,
  kShiftRight,
  kBitAnd,
  kBitOr,
  kBitXor,
  // args: condition, then, otherwise.
  kSelect,
};

struct Node;
using Expr = std::shared_ptr<const Node>;

// Immutable once built. Semantics, the same on every target: int32 wraps; x // 0 and x % 0 are 0;
// floor division and modulo round towards minus infinity; kFloor saturates and takes NaN to 0;
// a look-up's index is clamped into its dim; a shift by less than 0 or more than 31 shifts all bits
// out, which leaves 0, or copies of the sign when it is to the right.
struct Node {
  Op op;
  Type type;
  std::int64_t int_value = 0;
  double float_value = 0;
  Variable variable = Variable::kScore;
  int slot = -1;
  std::uint32_t clamped = 0;  // kLoad: bit i is set when args[i] was not proven to lie in its dim
  std::vector<Expr> args;
  SourceSpan span;  // in the user's file, for messages
};

// Longest q_len and kv_len that a launch may have. With it most index arithmetic provably never
// wraps.
constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 28;

enum class TensorType : std::uint8_t {
  kInt32,
  kFloat32,
  kBool /* one byte */,
  kFloat16,
  kBFloat16
};

// Of what a look-up gives.
inline Type element_type(TensorType type) {
  return type == TensorType::kInt32  ? Type::kInt32
         : type == TensorType::kBool ? Type::kBool
                                     : Type::kFloat32;
}
inline bool is_half(TensorType type) {
  return type == TensorType::kFloat16 || type == TensorType::kBFloat16;
}

enum class Dim : std::uint8_t { kBatch, kHeads, kKvHeads, kQLen, kKvLen, kNumber };

// How many elements a tensor has along a dim: a number, one of the problem's sizes, or
// (size * factor + offset) // divisor of one, which is never less than one. `factor` and `divisor`
// have no common divisor, so that equal sizes are equal.
struct DimSize {
  Dim dim = Dim::kNumber;
  int number = 0;  // when kNumber
  int factor = 1, offset = 0, divisor = 1;

  // Whether it is a number, or one of the problem's sizes as it is.
  bool is_plain() const { return factor == 1 && offset == 0 && divisor == 1; }
  // Elements of a problem whose size by the name of `dim` is `size`, at most kMaxSequenceLength.
  std::int64_t elements(std::int64_t size) const {
    if (dim == Dim::kNumber) return number;
    if (is_plain()) return size;
    const std::int64_t dividend = size * factor + offset;
    return dividend < divisor ? 1 : dividend / divisor;
  }
  bool operator==(const DimSize&) const = default;
};

// A scalar whose value the spec gives is folded by the parser and never reaches the tree.
struct ScalarDecl {
  std::string name;
  Type type = Type::kFloat32;
  bool is_constant = false;
  double value = 0;  // when is_constant
};

struct TensorDecl {
  std::string name;
  TensorType type = TensorType::kFloat32;
  std::vector<DimSize> dims;  // none: a single element
  bool grad = false;
};

// The names an expression may use beside the variables, functions and named masks.
// Scalar slots index `scalars`, constants included.
struct Environment {
  std::vector<ScalarDecl> scalars;
  std::vector<TensorDecl> tensors;
  bool is_packed = false;  // dims q_len and kv_len are of all sequences, indices of the own one
  bool is_paged = false;   // packed, but for kv_len, a dim that each sequence has its own of
};

}  // namespace attune::expr
