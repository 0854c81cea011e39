// Makes tree nodes, folding constants and dropping what has no effect. Every tree is built with
// these.
#pragma once

#include <vector>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// Types must be right already (ast.hpp says which each operator takes): the parser checks, others
// know.
Expr make_int(std::int64_t value, SourceSpan span = {});  // wrapped to int32
Expr make_float(double value, SourceSpan span = {});      // rounded to float32; must be finite
Expr make_bool(bool value, SourceSpan span = {});
Expr make_variable(Variable variable, SourceSpan span = {});
// A position or length of a sequence that is a `part`-th of one that a launch may have.
Expr make_part_variable(Variable variable, int part, SourceSpan span = {});
Expr make_scalar(int slot, Type type, SourceSpan span = {});
Expr make_load(int slot, Type type, std::vector<Expr> indices, std::uint32_t clamped,
               SourceSpan span = {});
Expr make_unary(Op op, Expr operand, SourceSpan span = {});
Expr make_binary(Op op, Expr left, Expr right, SourceSpan span = {});
Expr make_select(Expr condition, Expr then, Expr otherwise, SourceSpan span = {});

bool is_constant(const Expr& expression);                 // kInt, kFloat or kBool
double constant_value(const Expr& expression);            // of those
bool is_normal_float(double value);                       // as float32: not 0, subnormal, infinite
bool is_one(const Expr& expression);                      // the constant 1
bool is_int(const Expr& expression, std::int64_t value);  // the literal `value`
bool is_comparison(Op op);
// Appends what the outermost `and`s of `e` join: `e` itself where it is none.
void collect_operands(const Expr& e, std::vector<Expr>& operands);

// Same value and shape, whatever the spans and what is known of variables.
bool equal(const Expr& a, const Expr& b);

}  // namespace attune::expr
