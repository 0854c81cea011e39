// Scores that only add a line to the scaled product, as a relative bias or ALiBi does: kernels then
// work it out once a row of a tile.
#pragma once

#include <optional>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// score = s + bias where bias grows by `step` with each key: neither has s, and `step` has no
// kv_idx. Both are float32.
struct ScoreLine {
  Expr bias, step;
};
std::optional<ScoreLine> score_line(const Expr& score);

}  // namespace attune::expr
