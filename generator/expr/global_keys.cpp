#include "generator/expr/global_keys.hpp"

#include <algorithm>

#include "generator/expr/intervals.hpp"
#include "generator/expr/lowering.hpp"

namespace attune::expr {
namespace {

constexpr std::int32_t kLong = 8192, kTile = 128;

bool asks_for_key(const Expr& e) {
  return depends_on(e, Variable::kKvIdx) && !depends_on(e, Variable::kQIdx);
}

bool hides_far_keys(const Expr& e, std::span<const double> scalars) {
  return depends_on(e, Variable::kQIdx) && classify(e, {.q0 = kLong - kTile,
                                                        .q1 = kLong,
                                                        .k0 = 0,
                                                        .k1 = kTile,
                                                        .q_len = kLong,
                                                        .kv_len = kLong,
                                                        .scalars = scalars,
                                                        .tensor_range = {}}) == TileClass::kSkip;
}

TileClass of_all_keys(const Expr& mask, std::int32_t query, std::span<const double> scalars) {
  return classify(mask, {.q0 = query,
                         .q1 = query + 1,
                         .k0 = 0,
                         .k1 = kLong,
                         .q_len = kLong,
                         .kv_len = kLong,
                         .scalars = scalars,
                         .tensor_range = {}});
}

}  // namespace

bool has_global_keys(const Expr& mask, std::span<const double> scalars) {
  if (!mask) return false;
  const auto in_part = [&](const Expr& part) { return has_global_keys(part, scalars); };
  const auto hides = [&](const Expr& part) { return hides_far_keys(part, scalars); };
  return (mask->op == Op::kOr && std::ranges::any_of(mask->args, asks_for_key) &&
          std::ranges::any_of(mask->args, hides)) ||
         std::ranges::any_of(mask->args, in_part);
}

bool has_global_queries(const Expr& mask, std::span<const double> scalars) {
  return mask && of_all_keys(mask, 0, scalars) == TileClass::kFull &&
         of_all_keys(mask, kLong / 2, scalars) != TileClass::kFull;
}

}  // namespace attune::expr
