#include "generator/plan/live_share.hpp"

#include <algorithm>
#include <array>
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

// Live tiles of the busiest CTA over the mean; `rows`: of an item, by its place in the sequence.
double busiest(const std::vector<double>& rows, const ProblemShape& shape, int tile_q,
               const ItemOrder& order) {
  // What is uneven repeats; more heads only even it out.
  constexpr std::int64_t kRounds = 64;
  const std::int64_t q_tiles = (shape.q_len + tile_q - 1) / tile_q;
  const std::int64_t tiles = (q_tiles + order.tiles_of_item - 1) / order.tiles_of_item;
  const std::int64_t heads = std::min(shape.heads * shape.batch, kRounds * order.ctas / tiles + 1);
  const std::int64_t group = std::min(order.group, heads);
  const std::int64_t before_last = (heads - std::min(order.last_group, heads)) / group;
  const auto count = std::int64_t(rows.size());
  std::vector<double> busy(static_cast<std::size_t>(order.ctas));
  double total = 0;
  std::int64_t item = 0;
  for (std::int64_t head = 0, done = 0; head < heads; ++done) {
    const std::int64_t size = done < before_last ? group : heads - head;
    for (std::int64_t tile = tiles - 1; tile >= 0; --tile) {
      const double live = rows[static_cast<std::size_t>(tile * count / tiles)];
      for (std::int64_t i = 0; i < size; ++i)
        busy[static_cast<std::size_t>(item++ % order.ctas)] += live;
      total += live * double(size);
    }
    head += size;
  }
  return std::ranges::max(busy) * double(order.ctas) / total;
}

LiveWork work_of(std::vector<double> rows, const AttentionSpec& spec, const ProblemShape& shape,
                 int tile_q, const ItemOrder& order) {
  const auto count = double(rows.size());
  const double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / count;
  // Something lives, if not in the sample.
  LiveWork work{.share = std::max(mean, 1.0 / (count * kColumns)),
                .reads_tensors = !expr::range_slots(spec.mask).empty()};
  for (double& row : rows) row = std::max(row, work.share / 100);  // an item costs something
  const auto [shortest, longest] = std::ranges::minmax(rows);
  work.shortest = shortest / work.share;
  work.longest = longest / work.share;
  work.busiest = busiest(rows, shape, tile_q, order);
  return work;
}

struct Question {
  expr::Expr mask;
  std::vector<std::optional<double>> scalars;  // of those that are known
  ProblemShape shape;
  int tile_q = 0, tile_kv = 0;
  bool operator==(const Question&) const = default;
};

struct Answer {
  Question question;
  ItemOrder order;
  std::vector<double> rows;
  LiveWork work;
};

}  // namespace

const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                          int tile_kv, const ItemOrder& order) {
  // The plans of one tile shape have a few orders, in turn.
  thread_local std::array<Answer, 4> known;
  thread_local std::size_t oldest = 0;
  Question question{spec.mask, {}, shape, tile_q, tile_kv};
  for (const expr::ScalarDecl& scalar : spec.environment.scalars)
    question.scalars.push_back(scalar.is_constant ? std::optional(scalar.value) : std::nullopt);
  std::vector<double> rows;  // dear, and the same in every order
  for (const Answer& answer : known) {
    if (answer.question != question) continue;
    if (answer.order == order) return answer.work;
    rows = answer.rows;
  }
  if (rows.empty()) rows = live_share_by_row(spec, shape, tile_q, tile_kv);
  Answer& answer = known[oldest];
  oldest = (oldest + 1) % known.size();
  answer = {std::move(question), order, rows, work_of(rows, spec, shape, tile_q, order)};
  return answer.work;
}

}  // namespace attune
