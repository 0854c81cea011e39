#include "generator/plan/sm90a_score_cost.hpp"

#include <algorithm>

#include "generator/expr/lowering.hpp"
#include "generator/expr/score_line.hpp"
#include "generator/plan/sm90a_parts.hpp"

namespace attune::sm90a {
namespace {

bool has_or(const expr::Expr& e) {
  return e->op == expr::Op::kOr || std::ranges::any_of(e->args, has_or);
}

}  // namespace

// Of the scores of docs/lab/search.md, "First guesses raced" (H200, 512 to 16384 tokens; ALiBi and
// softcaps, d 64 and 128):
// - ALiBi without a mask. At d 128 64 keys are the best up to 1024 tokens, 96 to 3072, then 128 in
//   two pieces; 80 are behind all of them. At d 64 80 are the best of three warpgroups, and two are
//   far behind beyond 1024 tokens.
// - Two pieces at d 128, without a mask: 512 tokens take 3 to 7 % longer than in one of 64 keys,
//   2048 as long, 8192 of a softcap 2 % less.
// - ALiBi under a causal mask, d 64, three warpgroups and one piece: turns gain 3 to 7 %, but not
//   below 2048 tokens; tiles of 96 keys lose 6 % to those of 80 and 64, which are ahead of all
//   else.
ScoreCost score_cost(const AttentionSpec& spec, const Sm90aPlan& tile) {
  if (!spec.score) return {};
  const bool is_line = expr::score_line(spec.score).has_value();
  const bool is_wide = tile.tile_kv > 80, in_two = tile.score_buffers == 2;
  const bool is_narrow_head = spec.head_dim_qk <= kSlabColumns;
  const bool three = tile.warpgroups == 3;
  const bool has_position = expr::depends_on_position(spec.score);
  if (spec.mask) {
    // Two warpgroups under a softcap: 512 tokens, d 128, 131 us in two pieces, 117 in one of 64
    // keys, 112 by three warpgroups; 2048 and more by these 3 to 8 % less.
    if (!has_position) return {.item = three || is_narrow_head ? 0.0 : 1000.0};
    if (!is_line || !three || in_two || !is_plain_band(spec)) return {};
    if (!is_narrow_head) return {.tile = 0.92};
    return {.item = tile.ping_pong ? -300.0 : -1500.0,
            .tile = (is_wide ? 1.06 : 1.0) * (tile.ping_pong ? 0.97 : 1.02)};
  }
  const double item = in_two && !is_narrow_head ? 1000 : 0;
  if (is_line) {
    // A line that is the same for all heads, and d 96, are not like ALiBi: `relbias_full` takes 80
    // keys 293 us and 96 keys 306 (2560 tokens), ALiBi at d 96 128 keys in one piece 1.16.
    const bool is_between_heads = !is_narrow_head && spec.head_dim_qk < 112;
    if (is_between_heads || !expr::depends_on(spec.score, expr::Variable::kHead))
      return {.tile = is_wide ? 1.04 : 1.0};
    // Three stages of two pieces, Q in registers: 4 to 8 % longer than two.
    const bool is_slow = in_two && tile.stages > 2 && tile.q_in_registers;
    const double wide = is_narrow_head ? (three ? 1.04 : 1.06) : is_slow ? 1.06 : 1.0;
    const bool is_between = !is_narrow_head && !is_wide && tile.tile_kv > 64;
    return {.item = item, .tile = is_wide ? wide : is_between ? 1.01 : 1.0};
  }
  // Beside such scores pieces of 80 keys are faster than of 96: `t5_bias`, 8192 tokens, 2246 us in
  // tiles of 160 and 2365 of 192.
  const double long_piece = in_two && tile.tile_kv > 160 ? 1.03 : 1.0;
  if (has_position) return {.tile = long_piece};
  if (is_narrow_head)
    return {.item = in_two && three && tile.tile_kv > 96 ? 1600.0 : 0.0, .tile = long_piece};
  return {.item = item, .tile = in_two ? 1.02 * long_piece : tile.tile_kv > 64 ? 1.03 : 1.0};
}

bool is_plain_band(const AttentionSpec& spec) {
  return spec.mask && !has_dropout(spec) && spec.environment.tensors.empty() && !is_packed(spec) &&
         !is_paged(spec) && spec.residues == 1 && !expr::contains_division(spec.mask) &&
         !has_or(spec.mask);
}

// H200: above d 64, up to 1024 tokens, 3 to 9 % longer than in one piece of 64 keys, from 2048 on
// level; at d 64 pieces of 48 keys 4 to 12 % longer than of 64.
double masked_pair(const AttentionSpec& spec, const Sm90aPlan& tile) {
  if (tile.score_buffers == 1 || tile.warpgroups == 1 || tile.pieces > 1) return 0;
  const bool is_narrow_head = spec.head_dim_qk <= kSlabColumns;
  if (is_narrow_head && (tile.warpgroups < 3 || tile.tile_kv >= 128 || spec.score)) return 0;
  return !is_plain_band(spec) ? 0 : is_narrow_head ? 500 : 700;
}

}  // namespace attune::sm90a
