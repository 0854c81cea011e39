#include "generator/plan/live_share.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <tuple>

#include "generator/expr/global_keys.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

// Tiles that are looked at.
constexpr std::int64_t kRows = 16;
constexpr std::int64_t kColumns = 32;
// Where tensors decide, in several batch entries and heads: query tiles of all of them together,
// of how many at least, and of how many parts are looked at as well.
constexpr std::size_t kMostItems = 64;
constexpr std::size_t kLeastEntries = 8;
constexpr std::size_t kEntriesOfParts = 4;

// Those of `length` in the middle of equal parts, at most so many.
std::vector<expr::Positions> sampled_tiles(std::int64_t length, int tile, std::int64_t most) {
  const auto tiles = att::tile_count<std::int64_t>(length, tile);
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

// The same with the first and the last one, which are no others' example, where there are more.
std::vector<expr::Positions> sampled_with_ends(std::int64_t length, int tile, std::int64_t most) {
  std::vector<expr::Positions> sample = sampled_tiles(length, tile, most);
  const auto end = static_cast<std::int32_t>(length), last = (end - 1) / tile * tile;
  if (sample.front().begin > 0) sample.insert(sample.begin(), {0, tile});
  if (sample.back().begin < last) sample.push_back({last, end});
  return sample;
}

struct Part {
  std::size_t tile = 0;  // whose part it is
  expr::Positions queries;
};

// `tiles` in parts of `length`.
std::vector<Part> parts_of(const std::vector<expr::Positions>& tiles, int length) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    for (std::int32_t begin = tiles[i].begin; begin < tiles[i].end; begin += length)
      parts.push_back({i, {begin, std::min(begin + length, tiles[i].end)}});
  }
  return parts;
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
  LiveTile tile;
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

// What CTAs have to do.
class Loads {
 public:
  Loads(std::size_t ctas, bool takes_next) : loads_(ctas), takes_next_(takes_next) {}

  // Of the next CTA, or of the first that is done.
  void add(double item) {
    if (!takes_next_) {
      loads_[next_] += item;
      if (++next_ == loads_.size()) next_ = 0;
      return;
    }
    std::ranges::pop_heap(loads_, std::greater());
    loads_.back() += item;
    std::ranges::push_heap(loads_, std::greater());
  }
  double most() const { return std::ranges::max(loads_); }

 private:
  std::vector<double> loads_;
  bool takes_next_;
  std::size_t next_ = 0;
};

// At least, of the keys of an entry, those that some query sees.
double keys_of(const LiveRows& rows) {
  const std::size_t count = rows.live.size();
  double keys = 0;
  for (std::size_t begin = 0; begin < rows.of_entries.size(); begin += count)
    keys += std::ranges::max(std::span(rows.of_entries).subspan(begin, count));
  return keys * double(count) / double(rows.of_entries.size());
}

}  // namespace

bool has_long_first_tile(const AttentionSpec& spec) {
  if (is_packed(spec)) return false;
  const auto scalars = constant_scalars(spec);
  return scalars && expr::has_global_queries(spec.mask, *scalars);
}

double LiveRows::share_of(std::size_t row) const {
  const auto count = static_cast<double>(live.size());
  if (end_share == 0) return 1 / count;
  return row == 0 || row + 1 == live.size() ? end_share : (1 - 2 * end_share) / (count - 2);
}

std::int64_t LiveRows::row_of(std::int64_t tile, std::int64_t tiles) const {
  const auto count = static_cast<std::int64_t>(live.size());
  if (end_share == 0 || tiles <= 2) return tile * count / tiles;
  if (tile == 0 || tile == tiles - 1) return tile == 0 ? 0 : count - 1;
  return 1 + (tile - 1) * (count - 2) / (tiles - 2);
}

LiveShare::LiveShare(const AttentionSpec& spec)
    : mask_(spec.mask), known_scalars_(known_scalars(spec)), samples_(samples_of(spec)) {
  if (!mask_) return;
  reads_tensors_ = !expr::range_slots(mask_).empty();
  long_first_ = has_long_first_tile(spec);
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

LiveRows LiveShare::rows(const ProblemShape& shape, const LiveTile& tile,
                         const MaskTensors* tensors) const {
  if (!counter_) return {.live = {1}};
  expr::TileBox box;
  box.q_len = static_cast<std::int32_t>(shape.q_len);
  box.kv_len = static_cast<std::int32_t>(shape.kv_len);
  const std::vector<expr::Positions> columns = sampled_tiles(box.kv_len, tile.kv, kColumns);
  box.scalars = scalars_;
  if (tensors != nullptr) box.tensor_range = tensors->range();
  const std::int64_t tiles = att::tile_count<std::int64_t>(shape.q_len, tile.q);
  const bool with_ends = tensors != nullptr && tiles > kRows;
  const std::vector<expr::Positions> queries =
      (with_ends ? sampled_with_ends : sampled_tiles)(box.q_len, tile.q, kRows);
  const std::size_t most_entries = std::max(kMostItems / queries.size(), kLeastEntries);
  const std::vector<MaskEntry> entries =
      tensors == nullptr ? std::vector<MaskEntry>(1) : tensors->entries(most_entries);
  LiveRows rows{.live = std::vector<double>(queries.size()),
                .full = 0,
                .end_share = with_ends ? 1 / static_cast<double>(tiles) : 0,
                .long_first = long_first_};
  const auto tiles_of_item = static_cast<double>(columns.size());
  const auto all_entries = static_cast<double>(entries.size());
  const std::vector<Part> parts =
      tensors == nullptr || tile.part_q == 0 ? std::vector<Part>() : parts_of(queries, tile.part_q);
  std::vector<expr::Positions> of_parts;
  for (const Part& part : parts) of_parts.push_back(part.queries);
  const std::size_t step = std::max<std::size_t>(1, entries.size() / kEntriesOfParts);
  double live_tiles = 0, live_parts = 0, full_parts = 0;  // where parts are looked at
  for (std::size_t at = 0; at < entries.size(); ++at) {
    const MaskEntry& entry = entries[at];
    std::tie(box.b, box.h, box.h_kv) = std::tie(entry.b, entry.h, entry.h_kv);
    const std::vector<expr::TileCounts> counts = (*counter_)(box, queries, columns);
    if (!parts.empty() && at % step == 0) {
      for (std::size_t i = 0; i < counts.size(); ++i)
        live_tiles += rows.share_of(i) * counts[i].live;
      const std::vector<expr::TileCounts> part_counts = (*counter_)(box, of_parts, columns);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        live_parts += rows.share_of(parts[i].tile) * part_counts[i].live;
        full_parts += rows.share_of(parts[i].tile) * part_counts[i].full;
      }
    }
    for (std::size_t i = 0; tile.by_keys && at % step == 0 && i < columns.size(); ++i) {
      const auto of_tiles = (*counter_)(box, queries, std::span(columns).subspan(i, 1));
      double live = 0;
      for (std::size_t row = 0; row < of_tiles.size(); ++row)
        live += rows.share_of(row) * of_tiles[row].live;
      rows.of_keys.push_back(live);
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double live = counts[i].live / tiles_of_item;
      rows.live[i] += live / all_entries;
      rows.full += rows.share_of(i) * counts[i].full / tiles_of_item / all_entries;
      if (tensors != nullptr) rows.of_entries.push_back(live);
    }
  }
  if (live_parts > 0) {
    rows.live_parts = live_parts * tile.part_q / (live_tiles * tile.q);
    rows.full_parts = full_parts / live_parts;
  }
  return rows;
}

LiveWork LiveShare::work(const LiveRows& rows, const MaskTensors* tensors) const {
  double mean = 0;
  for (std::size_t i = 0; i < rows.live.size(); ++i) mean += rows.share_of(i) * rows.live[i];
  // Something lives, if not in the sample.
  LiveWork work{.share = std::max(mean, 1.0 / double(rows.live.size() * kColumns)),
                .reads_tensors = reads_tensors_ && tensors == nullptr};
  if (!work.reads_tensors) work.partial = std::clamp(1 - rows.full / work.share, 0.0, 1.0);
  const std::vector<double>& items = rows.of_entries.empty() ? rows.live : rows.of_entries;
  const auto [shortest, longest] = std::ranges::minmax(items);
  work.shortest = cost_of_row(shortest, work) / work.share;
  work.longest = cost_of_row(longest, work) / work.share;
  work.is_described = tensors != nullptr;
  work.long_first = rows.long_first;
  work.live_parts = rows.live_parts;
  work.full_parts = rows.full_parts;
  if (work.is_described) work.keys = keys_of(rows);
  work.of_keys = rows.of_keys;
  return work;
}

// Live tiles of the busiest CTA over the mean.
double LiveShare::busiest(const LiveRows& rows, const LiveWork& work, const ProblemShape& shape,
                          int tile_q, const ItemOrder& order) {
  if (order.takes_next && !work.is_described) return 1;  // the families' rules of thumb
  // What is uneven repeats; more heads only even it out. A CTA that takes the next item is at the
  // end no more behind of many than of few.
  const std::int64_t most_rounds = order.takes_next ? 12 : 64;
  const std::int64_t tiles =
      att::tile_count<std::int64_t>(shape.q_len, std::int64_t{tile_q} * order.tiles_of_item);
  const std::int64_t heads =
      std::min(shape.heads * shape.batch, most_rounds * order.ctas / tiles + 1);
  const std::int64_t items = heads * tiles;
  if (work.longest == work.shortest) {  // whoever takes one more than others
    return double(att::tile_count(items, order.ctas)) * double(order.ctas) / double(items);
  }
  const auto groups = att::head_groups<std::int64_t>(
      heads, {std::min(order.group, heads), std::min(order.last_group, heads)});
  const auto count = std::int64_t(rows.live.size());
  const std::vector<double>& live = rows.of_entries.empty() ? rows.live : rows.of_entries;
  const std::int64_t entries = std::int64_t(live.size()) / count;
  Loads loads(static_cast<std::size_t>(order.ctas), order.takes_next);
  double total = 0;
  for (std::int64_t group = 0; group * groups.size < heads && group <= groups.before_last;
       ++group) {
    const std::int64_t size = groups.size_of(group);
    for (std::int64_t at = tiles - 1; at >= 0; --at) {
      const bool moves = order.first_tile_first && rows.long_first;
      const std::int64_t tile = moves ? att::with_first_tile_first(at, tiles) : at;
      for (std::int64_t i = 0; i < size; ++i) {
        // Those that were looked at stand for their neighbours.
        const std::int64_t entry = (group * groups.size + i) * entries / heads;
        const double item =
            (work.is_described ? order.item_share : 0) +
            cost_of_row(live[static_cast<std::size_t>(entry * count + rows.row_of(tile, tiles))],
                        work);
        loads.add(item);
        total += item;
      }
    }
  }
  const double busiest = loads.most() * double(order.ctas) / total;
  if (!order.takes_next) return busiest;
  return 1 + (busiest - 1) * double(heads) / double(shape.heads * shape.batch);
}

const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape,
                          const LiveTile& tile, const ItemOrder& order) {
  thread_local std::optional<Memory> memory;
  if (!memory || !memory->share.is_of(spec)) memory.emplace(spec);
  LiveRows rows;  // dear, and the same in every order
  for (const Answer& answer : memory->known) {
    if (answer.shape != shape || answer.tile != tile) continue;
    if (answer.order == order) return answer.work;
    rows = answer.rows;
  }
  if (memory->drawn_shape != shape) {
    memory->drawn = memory->share.tensors(shape);
    memory->drawn_shape = shape;
  }
  const MaskTensors* tensors = memory->drawn.get();
  if (rows.live.empty()) rows = memory->share.rows(shape, tile, tensors);
  LiveWork work = memory->share.work(rows, tensors);
  work.busiest = LiveShare::busiest(rows, work, shape, tile.q, order);
  Answer& answer = memory->known[memory->oldest];
  memory->oldest = (memory->oldest + 1) % memory->known.size();
  answer = {shape, tile, order, std::move(rows), work};
  return answer.work;
}

}  // namespace attune
