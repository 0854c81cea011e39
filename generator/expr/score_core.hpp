// Scores whose ends are multiplications and additions of constants, as a softcap's are: kernels
// leave them to the multiply-adds that come before and after anyway.
#pragma once

#include <optional>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// score = multiplier * core + offset, multiplier > 0, where kScore in `core` stands for what gives
// the scaled product when it is multiplied by the `scale` that score_core() was given. Equal but
// for rounding. Of 50 * tanh(s / 50) the core is 1 / (1 + exp2(c * s)), and score = 100 core - 50.
struct ScoreCore {
  Expr core;
  float multiplier, offset;
};

// Thread-safe.
ScoreCore score_core(const Expr& score, float scale);

// score = multiplier / (1 + exp2(step * x + shift)) + offset of what gives the scaled product when
// it is multiplied by `scale`, with the constants of score_core(): a softcap or a sigmoid of a
// line.
struct ScoreLogistic {
  float step, shift;
};

// Thread-safe.
std::optional<ScoreLogistic> score_logistic(const Expr& score, float scale);

}  // namespace attune::expr
