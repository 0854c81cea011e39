#include "cache/snapshot.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <tuple>

#include "cache/winner.hpp"
#include "generator/support/hash.hpp"

namespace attune {
namespace {

// Multiplier of splitmix64 (Steele, Lea, Flood 2014), which spreads small integers over all bits.
constexpr std::uint64_t kMix = 0xbf58476d1ce4e5b9;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * kMix;
  return hash ^ (hash >> 29);
}

std::uint64_t slot_of(const SpecId& spec, Pass pass) {
  return mix(spec.low, spec.high ^ static_cast<std::uint64_t>(pass));
}

std::uint64_t slot_of(const SpecId& spec, Pass pass, const ProblemShape& shape) {
  std::uint64_t hash = spec.low ^ static_cast<std::uint64_t>(pass);
  hash = mix(hash, static_cast<std::uint64_t>(shape.batch) << 32 ^
                       static_cast<std::uint64_t>(shape.heads));
  hash = mix(hash, static_cast<std::uint64_t>(shape.q_len) << 32 ^
                       static_cast<std::uint64_t>(shape.kv_len));
  return mix(hash, static_cast<std::uint64_t>(shape.kv_heads));
}

// A row, or a range of them.
template <typename T>
bool is_of(const T& rows, const SpecId& spec, Pass pass) {
  return rows.spec == spec && rows.pass == pass;
}

// At most half full, so that a probe ends after a step or two.
std::size_t table_size(std::size_t entries) {
  return std::bit_ceil(std::max<std::size_t>(2 * entries, 2));
}

}  // namespace

SpecId SpecId::from_hash(std::string_view spec_hash) {
  const auto parse = [](std::string_view digits, std::uint64_t* value) {
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), *value, 16);
    return error == std::errc{} && end == digits.end();
  };
  SpecId id;
  if (spec_hash.size() == 32 && parse(spec_hash.substr(0, 16), &id.high) &&
      parse(spec_hash.substr(16), &id.low)) {
    return id;
  }
  return from_hash(hash128_hex(spec_hash));
}

Snapshot::Features Snapshot::features(const ProblemShape& shape) noexcept {
  const auto log = [](std::int64_t value) {
    return std::log2(static_cast<float>(std::max<std::int64_t>(value, 1)));
  };
  const float heads = log(shape.heads);
  return {log(shape.q_len), log(shape.kv_len), (log(shape.batch) + heads) * std::sqrt(0.5f),
          (heads - log(shape.kv_heads)) * 0.5f};
}

Snapshot::Snapshot(std::span<const std::vector<ProblemWinner>> layers) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (const ProblemWinner& winner : layers[layer]) {
      rows_.push_back({.spec = SpecId::from_hash(winner.spec_hash),
                       .pass = winner.pass,
                       .shape = winner.winner.measured_shape,
                       .plan = winner.winner.plan,
                       .compiler = winner.winner.compiler,
                       .median_us = winner.winner.median_us,
                       .same_driver = winner.winner.same_driver,
                       .layer = static_cast<int>(layer),
                       .runners_up = winner.winner.runners_up,
                       .by_data = winner.winner.by_data});
    }
  }
  std::ranges::sort(rows_, {}, [](const SnapshotRow& row) {
    return std::tuple(row.spec.high, row.spec.low, row.pass, row.layer, row.shape);
  });
  for (const SnapshotRow& row : rows_) features_.push_back(features(row.shape));

  exact_.resize(table_size(rows_.size()));
  for (std::uint32_t i = 0; i < rows_.size(); ++i) {
    std::size_t slot = slot_of(rows_[i].spec, rows_[i].pass, rows_[i].shape) & (exact_.size() - 1);
    const auto is_same = [&](const SnapshotRow& row) {
      return is_of(row, rows_[i].spec, rows_[i].pass) && row.shape == rows_[i].shape;
    };
    while (exact_[slot] != 0 && !is_same(rows_[exact_[slot] - 1]))
      slot = (slot + 1) & (exact_.size() - 1);
    if (exact_[slot] == 0) exact_[slot] = i + 1;  // else an earlier layer has it
  }

  std::size_t spec_count = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i)
    spec_count += i == 0 || !is_of(rows_[i], rows_[i - 1].spec, rows_[i - 1].pass);
  specs_.resize(table_size(spec_count));
  for (std::uint32_t begin = 0, end = 0; begin < rows_.size(); begin = end) {
    const SnapshotRow& first = rows_[begin];
    while (end < rows_.size() && is_of(rows_[end], first.spec, first.pass)) ++end;
    std::size_t slot = slot_of(first.spec, first.pass) & (specs_.size() - 1);
    while (specs_[slot].begin != specs_[slot].end) slot = (slot + 1) & (specs_.size() - 1);
    specs_[slot] = {first.spec, first.pass, begin, end};
  }
}

const SnapshotRow* Snapshot::find_exact(const SpecId& spec, Pass pass,
                                        const ProblemShape& shape) const noexcept {
  if (rows_.empty()) return nullptr;
  std::size_t slot = slot_of(spec, pass, shape) & (exact_.size() - 1);
  for (; exact_[slot] != 0; slot = (slot + 1) & (exact_.size() - 1)) {
    const SnapshotRow& row = rows_[exact_[slot] - 1];
    if (row.shape == shape && is_of(row, spec, pass)) return &row;
  }
  return nullptr;
}

std::span<const SnapshotRow> Snapshot::rows_of(const SpecId& spec, Pass pass) const noexcept {
  std::size_t slot = slot_of(spec, pass) & (specs_.size() - 1);
  while (specs_[slot].begin != specs_[slot].end && !is_of(specs_[slot], spec, pass))
    slot = (slot + 1) & (specs_.size() - 1);
  return rows().subspan(specs_[slot].begin, specs_[slot].end - specs_[slot].begin);
}

SnapshotAnswer Snapshot::find(const SpecId& spec, Pass pass,
                              const ProblemShape& shape) const noexcept {
  if (const SnapshotRow* row = find_exact(spec, pass, shape)) return {row, 0};
  const std::span<const SnapshotRow> measured = rows_of(spec, pass);
  if (measured.empty()) return {};

  const Features asked = features(shape);
  const auto begin = static_cast<std::size_t>(measured.data() - rows_.data());
  std::size_t best = begin;
  float best_distance = INFINITY;
  for (std::size_t i = begin; i < begin + measured.size(); ++i) {
    float distance = 0;
    for (std::size_t k = 0; k < asked.size(); ++k) {
      const float difference = features_[i][k] - asked[k];
      distance += difference * difference;
    }
    if (distance < best_distance) {  // rows are by layer, then shape: the first of equals stays
      best_distance = distance;
      best = i;
    }
  }
  return {&rows_[best], best_distance};
}

SnapshotCell::SnapshotCell() : current_(new Snapshot) {}

SnapshotCell::~SnapshotCell() { delete current_.load(); }

SnapshotCell::View SnapshotCell::view() const noexcept {
  static std::atomic<std::size_t> threads{0};
  thread_local const std::size_t slot = threads.fetch_add(1, std::memory_order_relaxed) % kSlots;
  // Sequentially consistent with replace(): either it sees this reader, or this reader sees its
  // snapshot.
  std::atomic<std::uint32_t>& readers = slots_[slot].readers;
  readers.fetch_add(1);
  return {&readers, current_.load()};
}

void SnapshotCell::replace(std::unique_ptr<const Snapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  retired_.push_back({std::unique_ptr<const Snapshot>(current_.exchange(snapshot.release())), 0});
  // A slot that is idle at any time after the exchange has no reader of what was replaced: later
  // ones load the new pointer. Slots still busy are looked at again by the next replace().
  std::uint64_t idle = 0;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if (slots_[slot].readers.load() == 0) idle |= std::uint64_t{1} << slot;
  }
  std::erase_if(retired_, [&](Retired& retired) {
    retired.slots_seen_idle |= idle;
    return retired.slots_seen_idle == ~std::uint64_t{0};
  });
}

}  // namespace attune
