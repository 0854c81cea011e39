// What people write who come from Python, NumPy, PyTorch or C, and what to write instead.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "generator/expr/ast.hpp"

namespace attune::expr {

struct ForeignOperator {
  std::string_view text, hint;
};
// Operators that the language does not have; one that another begins with comes after it.
std::span<const ForeignOperator> foreign_operators();

// "write `x if condition else y`" for `where`; empty when the word means nothing elsewhere either.
std::string_view foreign_word_hint(std::string_view word);

// What kBitAnd, kBitOr or kBitXor is of booleans: "and", "or", "!=".
std::string_view word_for_bits(Op op);

// What to write for `torch.tanh` or `score.tanh`: there are neither modules nor members.
std::string dotted_name_hint(std::string_view name);

}  // namespace attune::expr
