#include "generator/plan/live_share.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "generator/expr/intervals.hpp"

namespace attune {
namespace {

// Tiles that are looked at.
constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 32;

}  // namespace

std::vector<double> live_share_by_row(const AttentionSpec& spec, const ProblemShape& shape,
                                      int tile_q, int tile_kv) {
  if (!spec.mask) return {1};
  std::vector<double> scalars;
  for (const expr::ScalarDecl& scalar : spec.environment.scalars) {
    if (!scalar.is_constant) return {1};
    scalars.push_back(scalar.value);
  }
  const std::int64_t q_tiles = (shape.q_len + tile_q - 1) / tile_q;
  const std::int64_t kv_tiles = (shape.kv_len + tile_kv - 1) / tile_kv;
  const std::int64_t rows = std::min(q_tiles, kRows);
  const std::int64_t columns = std::min(kv_tiles, kColumns);
  const expr::TileClassifier classify(spec.mask);
  expr::TileBox box{.q_len = static_cast<std::int32_t>(shape.q_len),
                    .kv_len = static_cast<std::int32_t>(shape.kv_len),
                    .scalars = scalars};
  std::vector<double> shares;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t q_tile = (2 * row + 1) * q_tiles / (2 * rows);
    box.q0 = static_cast<std::int32_t>(q_tile * tile_q);
    box.q1 = static_cast<std::int32_t>(std::min((q_tile + 1) * tile_q, shape.q_len));
    std::int64_t live = 0;
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t kv_tile = (2 * column + 1) * kv_tiles / (2 * columns);
      box.k0 = static_cast<std::int32_t>(kv_tile * tile_kv);
      box.k1 = static_cast<std::int32_t>(std::min((kv_tile + 1) * tile_kv, shape.kv_len));
      live += classify(box) != expr::TileClass::kSkip ? 1 : 0;
    }
    shares.push_back(static_cast<double>(live) / static_cast<double>(columns));
  }
  return shares;
}

double live_tile_share(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                       int tile_kv) {
  const std::vector<double> rows = live_share_by_row(spec, shape, tile_q, tile_kv);
  const double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / double(rows.size());
  // Something lives, if not in the sample.
  return std::max(mean, 1.0 / double(rows.size() * kColumns));
}

}  // namespace attune
