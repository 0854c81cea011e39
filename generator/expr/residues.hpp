// Masks under which queries and keys fall apart into sequences that do not see each other: those
// whose positions leave one remainder.
#pragma once

#include <optional>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// A mask that is `rest`, and that query and key leave the same remainder by `modulus`, wherever
// q_len and kv_len are multiples of it. `rest` null: every key of the remainder is live.
struct ResidueForm {
  int modulus = 1;
  Expr rest;
};

// Of a mask with a term `(q_idx - kv_idx) % n == 0`, or what is the same, that all of it needs: an
// operand of its outermost `and`s. The largest n of several, at most kMaxResidues.
inline constexpr int kMaxResidues = 64;
std::optional<ResidueForm> residue_form(const Expr& mask);

// `e` in terms of the sequences of one remainder, which are the batch: b counts a sequence's
// remainders before the next sequence's, and q_idx, kv_idx, q_len and kv_len are the remainder's
// own. Null stays null. No look-up of `e` is in a tensor that has one of these as a dim.
Expr by_residues(const Expr& e, int modulus);

}  // namespace attune::expr
