#include "generator/plan/live_share.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "generator/expr/intervals.hpp"

namespace attune {
namespace {

// Tiles that are looked at.
constexpr std::int64_t kRows = 16;
constexpr std::int64_t kColumns = 32;

// Of each of a few query tiles spread over the sequence, the first one first.
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

LiveWork classified(const AttentionSpec& spec, const ProblemShape& shape, int tile_q, int tile_kv,
                    int ctas) {
  std::vector<double> rows = live_share_by_row(spec, shape, tile_q, tile_kv);
  const auto count = std::int64_t(rows.size());
  const double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / double(count);
  // Something lives, if not in the sample.
  LiveWork work{.share = std::max(mean, 1.0 / double(count * kColumns))};
  for (double& row : rows) row = std::max(row, work.share / 100);  // an item costs something
  const std::int64_t q_tiles = (shape.q_len + tile_q - 1) / tile_q;
  // What is uneven repeats; later rounds only even it out.
  constexpr std::int64_t kRounds = 64;
  const std::int64_t items = std::min(q_tiles * shape.heads * shape.batch, kRounds * ctas);
  std::vector<double> busy(static_cast<std::size_t>(ctas));
  double total = 0;
  for (std::int64_t item = 0; item < items; ++item) {
    const double live = rows[static_cast<std::size_t>(item % q_tiles * count / q_tiles)];
    busy[static_cast<std::size_t>(item % ctas)] += live;
    total += live;
  }
  const auto [shortest, longest] = std::ranges::minmax(rows);
  work.shortest = shortest * double(items) / total;
  work.longest = longest * double(items) / total;
  work.busiest = std::ranges::max(busy) * ctas / total;
  return work;
}

struct Question {
  expr::Expr mask;
  std::vector<std::optional<double>> scalars;  // of those that are known
  ProblemShape shape;
  int tile_q = 0, tile_kv = 0, ctas = 0;
  bool operator==(const Question&) const = default;
};

}  // namespace

const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                          int tile_kv, int ctas) {
  thread_local Question last;
  thread_local LiveWork work;
  Question question{spec.mask, {}, shape, tile_q, tile_kv, ctas};
  for (const expr::ScalarDecl& scalar : spec.environment.scalars)
    question.scalars.push_back(scalar.is_constant ? std::optional(scalar.value) : std::nullopt);
  if (question != last) {
    work = classified(spec, shape, tile_q, tile_kv, ctas);
    last = std::move(question);
  }
  return work;
}

}  // namespace attune
