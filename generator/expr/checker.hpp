// Syntax -> typed tree: finds what names stand for, checks types, proves indices. Of the parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "generator/expr/ast.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/parser.hpp"
#include "generator/expr/scope.hpp"
#include "generator/expr/syntax.hpp"
#include "generator/support/result.hpp"

namespace attune::expr {

// Of messages: "a", "an"; "an int32".
std::string_view article(Type type);
std::string described(const Expr& e);

class Checker {
 public:
  Checker(std::string_view text, const Environment& environment, Role role,
          const SourceOrigin& origin)
      : text_(text), environment_(environment), role_(role), origin_(origin) {}

  Result<Expr> whole();

 private:
  Error fail(TextRange range, const Scope& scope, std::string id, std::string message,
             std::string hint = {}) const;
  SourceSpan span_of(TextRange range, const Scope& scope) const;

  // Checks one level of the tree and the limits that expansion could break.
  Result<Expr> check(const Syntax& syntax, const Scope& scope);
  Result<Expr> check_node(const Syntax& syntax, const Scope& scope);
  Result<Expr> check_let(const Syntax& syntax, const Scope& scope);
  // A name stands for one thing wherever it is seen.
  Status check_new_name(const Syntax& syntax, const Scope& scope) const;

  // check_names.cpp
  Result<Expr> check_name(const Syntax& syntax, const Scope& scope);
  Error tensor_without_index(const Syntax& syntax, const Scope& scope) const;
  Status check_allowed(Variable variable, const Syntax& syntax, const Scope& scope) const;
  Error unknown(const Syntax& syntax, const Scope& scope) const;
  Result<Expr> check_call(const Syntax& syntax, const Scope& scope);
  Error wrong_count(const Syntax& syntax, const Scope& scope, std::size_t expected) const;
  // A named mask at work: its body with the arguments in place of the parameters.
  Result<Expr> expand(const Definition& definition, const Syntax& syntax, const Scope& scope);
  Result<Expr> check_look_up(const Syntax& syntax, const Scope& scope);

  // check_reductions.cpp
  Result<Expr> check_reduction(const ReductionName& reduction, const Syntax& syntax,
                               const Scope& scope);

  // check_operators.cpp
  static Expr to_float(const Expr& e);
  static void promote(Expr& a, Expr& b);
  // An operand that must be int32 or float32.
  Result<Expr> check_number(const Syntax& syntax, const Scope& scope, std::string_view user);
  Result<Expr> check_bool(const Syntax& syntax, const Scope& scope, std::string_view user);
  Result<Expr> check_unary(const Syntax& syntax, const Scope& scope);
  Result<Expr> check_binary(const Syntax& syntax, const Scope& scope);
  Result<Expr> check_bits(const Syntax& syntax, const Scope& scope);
  // a < b <= c is a < b and b <= c.
  Result<Expr> check_chain(const Syntax& syntax, const Scope& scope);
  Result<Expr> check_select(const Syntax& syntax, const Scope& scope);

  struct Extent {
    std::int64_t nodes = 1;  // saturating
    int depth = 1;
  };
  // Operands were measured when they were checked, so this goes no deeper than a reduction's terms.
  Extent extent_of(const Expr& e);

  std::string_view text_;
  const Environment& environment_;
  Role role_;
  const SourceOrigin& origin_;
  std::unordered_map<Expr, Extent> extents_;
  std::int64_t checks_ = 0;
};

}  // namespace attune::expr
