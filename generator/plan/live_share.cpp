#include "generator/plan/live_share.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "templates/work_items.h"

namespace attune {
namespace {

// Tiles that are looked at.
constexpr std::int64_t kRows = 16;
constexpr std::int64_t kColumns = 32;

// Those of `length` in the middle of equal parts, at most so many.
std::vector<expr::Positions> sampled_tiles(std::int64_t length, int tile, std::int64_t most) {
  const std::int64_t tiles = (length + tile - 1) / tile;
  const std::int64_t count = std::min(tiles, most);
  std::vector<expr::Positions> sample;
  sample.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = (2 * i + 1) * tiles / (2 * count) * tile;
    sample.push_back({static_cast<std::int32_t>(begin),
                      static_cast<std::int32_t>(std::min(begin + tile, length))});
  }
  return sample;
}

std::vector<std::optional<double>> known_scalars(const AttentionSpec& spec) {
  std::vector<std::optional<double>> values;
  for (const expr::ScalarDecl& scalar : spec.environment.scalars)
    values.push_back(scalar.is_constant ? std::optional(scalar.value) : std::nullopt);
  return values;
}

// An item costs something, if nothing of it lives in the sample.
double cost_of_row(double row, const LiveWork& work) { return std::max(row, work.share / 100); }

struct Answer {
  ProblemShape shape;
  int tile_q = 0, tile_kv = 0;
  ItemOrder order;
  LiveRows rows;
  LiveWork work;
};

// A thread's last questions, all of one spec.
struct Memory {
  explicit Memory(const AttentionSpec& spec) : share(spec) {}
  LiveShare share;
  std::optional<ProblemShape> drawn_shape;
  std::shared_ptr<const MaskTensors> drawn;
  std::array<Answer, 4> known;  // the plans of one tile shape have a few orders, in turn
  std::size_t oldest = 0;
};

}  // namespace

LiveShare::LiveShare(const AttentionSpec& spec)
    : mask_(spec.mask), known_scalars_(known_scalars(spec)), samples_(samples_of(spec)) {
  if (!mask_) return;
  reads_tensors_ = !expr::range_slots(mask_).empty();
  const std::vector<int> read = expr::telling_slots(mask_);
  const auto scalars = constant_scalars(spec);
  if (!scalars) return;
  scalars_ = *scalars;
  counter_.emplace(mask_);
  const auto is_said = [&](int slot) {
    return samples_[static_cast<std::size_t>(slot)].kind != SampleKind::kUnsaid;
  };
  if (!read.empty() && std::ranges::all_of(read, is_said)) declared_ = spec.environment.tensors;
}

bool LiveShare::is_of(const AttentionSpec& spec) const {
  if (mask_ != spec.mask || samples_.size() != spec.environment.tensors.size()) return false;
  for (std::size_t slot = 0; slot < samples_.size(); ++slot) {
    if (samples_[slot] != sample_of(spec, slot)) return false;
  }
  return known_scalars_ == known_scalars(spec);
}

std::shared_ptr<const MaskTensors> LiveShare::tensors(const ProblemShape& shape) const {
  if (declared_.empty()) return nullptr;
  return MaskTensors::draw(mask_, declared_, samples_, shape);
}

LiveRows LiveShare::rows(const ProblemShape& shape, int tile_q, int tile_kv,
                         const MaskTensors* tensors) const {
  if (!counter_) return {.live = {1}};
  const std::vector<expr::Positions> columns = sampled_tiles(shape.kv_len, tile_kv, kColumns);
  expr::TileBox box;
  box.q_len = static_cast<std::int32_t>(shape.q_len);
  box.kv_len = static_cast<std::int32_t>(shape.kv_len);
  box.scalars = scalars_;
  if (tensors != nullptr) box.tensor_range = tensors->range();
  const std::vector<expr::Positions> queries = sampled_tiles(shape.q_len, tile_q, kRows);
  const std::int32_t batches = tensors == nullptr ? 1 : tensors->batch();
  LiveRows rows{.live = std::vector<double>(queries.size()), .full = 0};
  for (box.b = 0; box.b < batches; ++box.b) {
    const std::vector<expr::TileCounts> counts = (*counter_)(box, queries, columns);
    const double tiles_of_row = static_cast<double>(columns.size()) * batches;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      rows.live[i] += counts[i].live / tiles_of_row;
      rows.full += counts[i].full / tiles_of_row / static_cast<double>(counts.size());
    }
  }
  return rows;
}

LiveWork LiveShare::work(const LiveRows& rows, const MaskTensors* tensors) const {
  const auto count = double(rows.live.size());
  const double mean = std::accumulate(rows.live.begin(), rows.live.end(), 0.0) / count;
  // Something lives, if not in the sample.
  LiveWork work{.share = std::max(mean, 1.0 / (count * kColumns)),
                .reads_tensors = reads_tensors_ && tensors == nullptr};
  if (!work.reads_tensors) work.partial = std::clamp(1 - rows.full / work.share, 0.0, 1.0);
  const auto [shortest, longest] = std::ranges::minmax(rows.live);
  work.shortest = cost_of_row(shortest, work) / work.share;
  work.longest = cost_of_row(longest, work) / work.share;
  return work;
}

// Live tiles of the busiest CTA over the mean.
double LiveShare::busiest(const LiveRows& rows, const LiveWork& work, const ProblemShape& shape,
                          int tile_q, const ItemOrder& order) {
  // What is uneven repeats; more heads only even it out.
  constexpr std::int64_t kRounds = 64;
  const std::int64_t tiles =
      att::tile_count<std::int64_t>(shape.q_len, std::int64_t{tile_q} * order.tiles_of_item);
  const std::int64_t heads = std::min(shape.heads * shape.batch, kRounds * order.ctas / tiles + 1);
  const std::int64_t items = heads * tiles;
  if (work.longest == work.shortest) {  // whoever takes one more than others
    return double(att::tile_count(items, order.ctas)) * double(order.ctas) / double(items);
  }
  const auto groups = att::head_groups<std::int64_t>(
      heads, {std::min(order.group, heads), std::min(order.last_group, heads)});
  const auto count = std::int64_t(rows.live.size());
  std::vector<double> busy(static_cast<std::size_t>(order.ctas));
  double total = 0;
  std::size_t cta = 0;
  for (std::int64_t group = 0; group * groups.size < heads && group <= groups.before_last;
       ++group) {
    const std::int64_t size = groups.size_of(group);
    for (std::int64_t tile = tiles - 1; tile >= 0; --tile) {
      const double live =
          cost_of_row(rows.live[static_cast<std::size_t>(tile * count / tiles)], work);
      for (std::int64_t i = 0; i < size; ++i) {
        busy[cta] += live;
        if (++cta == busy.size()) cta = 0;
      }
      total += live * double(size);
    }
  }
  return std::ranges::max(busy) * double(order.ctas) / total;
}

const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                          int tile_kv, const ItemOrder& order) {
  thread_local std::optional<Memory> memory;
  if (!memory || !memory->share.is_of(spec)) memory.emplace(spec);
  LiveRows rows;  // dear, and the same in every order
  for (const Answer& answer : memory->known) {
    if (answer.shape != shape || answer.tile_q != tile_q || answer.tile_kv != tile_kv) continue;
    if (answer.order == order) return answer.work;
    rows = answer.rows;
  }
  if (memory->drawn_shape != shape) {
    memory->drawn = memory->share.tensors(shape);
    memory->drawn_shape = shape;
  }
  const MaskTensors* tensors = memory->drawn.get();
  if (rows.live.empty()) rows = memory->share.rows(shape, tile_q, tile_kv, tensors);
  LiveWork work = memory->share.work(rows, tensors);
  work.busiest = LiveShare::busiest(rows, work, shape, tile_q, order);
  Answer& answer = memory->known[memory->oldest];
  memory->oldest = (memory->oldest + 1) % memory->known.size();
  answer = {shape, tile_q, tile_kv, order, std::move(rows), work};
  return answer.work;
}

}  // namespace attune
