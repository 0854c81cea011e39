// Scores that only add to the scaled product. Where that is a line, as of a relative bias or ALiBi,
// kernels work it out once a row of a tile.
#pragma once

#include <optional>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// What a score adds to the scaled product, where that is all that it does: it has no s.
std::optional<Expr> score_bias(const Expr& score);

// score = s + bias where bias grows by `step` with each key: neither has s, and `step` has no
// kv_idx. Both are float32. None where a query adds a number that it looks up, as a padding mask's:
// beside one of 1e9 a line that a kernel works out ahead of the product would be lost.
struct ScoreLine {
  Expr bias, step;
};
std::optional<ScoreLine> score_line(const Expr& score);

}  // namespace attune::expr
