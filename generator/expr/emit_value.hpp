// One expression as straight-line C++: what mask, score and sink are made of.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// How products of floats are rounded: as the compiler contracts them with sums, which may be
// another way in another kernel, or by themselves (templates/ptx/rounded.cuh).
enum class Products { kContracted, kRounded };

// Prints expressions that share their common parts. Count all of them before the first value().
class ValueEmitter {
 public:
  // Declarations are appended to `lines`, each indented by two. Names in scope there: c (Context),
  // s (the scaled product), q_idx, kv_idx.
  ValueEmitter(const Environment& environment, std::string& lines,
               Products products = Products::kContracted);
  ~ValueEmitter();

  // The name of a value that is there already. Before anything that holds it is counted.
  void know(const Expr& expression, std::string name);
  void count(const Expr& expression);
  // Text of the value: bracketed, a call, a literal or a name.
  std::string value(const Expr& expression);
  // Text of the offset in elements, a long long, of what a look-up reads.
  std::string offset(const Expr& look_up);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The body of a function that returns the expression's value: declarations of what is used more
// than once or loaded from memory, then `return ...;`.
std::string emit_value(const Expr& expression, const Environment& environment,
                       Products products = Products::kContracted);

std::string_view cpp_type(Type type);

// The templates' name of a tensor's elements.
std::string_view element_name(TensorType type);

// The templates' name of a function of one float32: math_exp of kExp.
std::string_view function_name(Op op);

// Without the brackets around the whole, if there are any.
std::string unbracketed(const std::string& text);

// Literals that read back exactly.
std::string int_literal(std::int64_t value);
std::string float_literal(double value);

}  // namespace attune::expr
