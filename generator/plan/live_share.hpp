// How much of the score square a mask leaves to compute, for the cost model.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "generator/expr/live_tiles.hpp"
#include "generator/plan/mask_tensors.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

// Whether the first query tile of a head is the longest, whatever tensors hold. Not of packed
// sequences, whose items are listed.
bool has_long_first_tile(const AttentionSpec& spec);

// How work items are dealt out to CTAs, in the order of att::tile_by_group, the last group of
// `last_group` heads or a few more.
struct ItemOrder {
  std::int64_t ctas = 1;
  int tiles_of_item = 1;  // query tiles
  std::int64_t group = 1, last_group = 1;
  bool takes_next = false;        // a CTA takes the next item when it is done, else every n-th one
  bool first_tile_first = false;  // with has_long_first_tile()
  double item_share = 0;          // what an item costs beside its tiles, over what all tiles cost
  bool operator==(const ItemOrder&) const = default;
};

// Of the score square. Where tensors decide, parts of so many queries are looked at, too; 0: none.
// `by_keys`: tiles of keys are looked at one by one, too.
struct LiveTile {
  int q = 0, kv = 0, part_q = 0;
  bool by_keys = false;
  bool operator==(const LiveTile&) const = default;
};

// What a mask leaves of the work items (query tiles of a head) of one tile shape, from a sample of
// tiles spread over the square of head 0. Everything without a mask, and where launch-time
// scalars decide. Look-ups count as unknown, unless the spec says what their tensors are like.
struct LiveWork {
  double share = 1;  // of the tiles that are not skipped; in (0, 1]
  // Of these, the share that has a dead element too, as far as one knows: the mask is evaluated for
  // all of its elements.
  double partial = 0;
  // Live tiles of the longest and the shortest item, and of the busiest CTA; each over the mean.
  // Of a CTA that takes the next item it is known where the tensors are.
  double longest = 1, shortest = 1, busiest = 1;
  // range_slots() of which nothing is said: tiles that are not known to be dead may be.
  bool reads_tensors = false;
  bool long_first = false;  // has_long_first_tile(), which the sample may not have
  // Whether the tensors that decide are known. Then also: of the parts of live tiles those that
  // live, and of these those without a dead element; and of the keys of an entry those that some
  // query sees, at least.
  bool is_described = false;
  double live_parts = 1, full_parts = 1, keys = 1;
  // By key tile, where they are looked at one by one, the share of its query tiles that live.
  std::vector<double> of_keys = {};
};

// Of the keys of an entry, those that its queries see: where the mask is a band, what one query
// tile sees, and as many more as there are queries. Nearly all are all: what a sample of tiles says
// to a few hundredths must not tell apart plans that draw the same keys.
inline double seen_keys(const LiveWork& work, const ProblemShape& shape) {
  if (work.is_described) return work.keys;
  if (work.reads_tensors) return 1;
  constexpr double kNearlyAll = 0.9;
  const double seen = work.share + double(shape.q_len) / double(shape.kv_len);
  return seen < kNearlyAll ? seen : 1;
}

// The sample of one tile shape at one shape.
struct LiveRows {
  // By query tile, the first one first, the share of its tiles that are not skipped.
  std::vector<double> live;
  double full = 1;  // share of all tiles that have no dead element
  // Where tensors decide: the same as `live` of each batch entry and head that was looked at, one
  // after the other; and what LiveWork says of parts.
  std::vector<double> of_entries = {};
  double live_parts = 1, full_parts = 1;
  std::vector<double> of_keys = {};
  // Not 0: the first and the last one are no others' example, and of all query tiles this share
  // each. Global tokens and the like are mostly there.
  double end_share = 0;
  bool long_first = false;  // has_long_first_tile()

  // Of all query tiles, those that number `row` stands for.
  double share_of(std::size_t row) const;
  // The number that stands for tile number `tile` of `tiles`.
  std::int64_t row_of(std::int64_t tile, std::int64_t tiles) const;
};

// The mask of one spec, analysed once. Immutable, thread-safe.
class LiveShare {
 public:
  explicit LiveShare(const AttentionSpec& spec);

  // Null where the mask reads nothing or something of which nothing is said, and where it reads too
  // much to be drawn in passing.
  std::shared_ptr<const MaskTensors> tensors(const ProblemShape& shape) const;

  // `tensors` are those of the shape, or null.
  LiveRows rows(const ProblemShape& shape, const LiveTile& tile, const MaskTensors* tensors) const;
  // All but `busiest`, which is 1, what it is at least.
  LiveWork work(const LiveRows& rows, const MaskTensors* tensors) const;
  // Of CTAs that deal with items in `order`; `rows` and `work` are those of the tile shape.
  static double busiest(const LiveRows& rows, const LiveWork& work, const ProblemShape& shape,
                        int tile_q, const ItemOrder& order);

  // Whether this is the analysis of `spec`'s mask.
  bool is_of(const AttentionSpec& spec) const;

 private:
  const expr::Expr mask_;  // keeps the tree from being another's
  std::vector<std::optional<double>> known_scalars_;
  std::vector<double> scalars_;
  std::optional<expr::LiveTileCounter> counter_;  // nullopt: everything lives, as far as one knows
  bool reads_tensors_ = false, long_first_ = false;
  const std::vector<Sample> samples_;
  std::vector<expr::TensorDecl> declared_;  // empty: not all that is read is described
};

// Remembered for the last questions: plans that are compared in a row share a few tile shapes, and
// each answer classifies hundreds of tiles. Valid until the thread's next call.
const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape,
                          const LiveTile& tile, const ItemOrder& order = {});

}  // namespace attune
