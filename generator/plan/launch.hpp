// What a host must know to run a plan: a list of launches and the workspace they share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune {

// One TMA descriptor, encoded by the host at each launch: the tensor as (dim, seq, heads, batch)
// with the caller's strides, a box of box_columns x box_rows x 1 x 1, zeros out of range.
struct TensorMapRecipe {
  enum class Tensor : std::uint8_t {
    kQuery,
    kKey,
    kValue,
    kOutput,
    kOutputGradient,
    kQueryGradient,
    kKeyGradient,
    kValueGradient
  } tensor = Tensor::kQuery;
  int box_columns = 64;      // along the head dim, elements, at most swizzle_bytes
  int box_rows = 64;         // along the sequence, <= 256
  int swizzle_bytes = 128;   // 0, 32, 64 or 128
  bool is_optional = false;  // Launch::otherwise runs where strides have none, or pages cut boxes
};

// What an item of a launch is; templates/work_items.h numbers them.
enum class WorkItem : std::uint8_t {
  kQueryTile,        // `tile` queries of a (batch, head)
  kPackedQueryTile,  // the same, or heads of one K/V head whose queries fit together
  kSequenceTile,     // a head of an item of the list of packed sequences, of `tile` queries
  kSequenceKeyTile,  // a K/V head of an item of their list of key tiles, of `tile` keys
  kListedPiece,      // a K/V head of an item of the list of pieces of packed sequences
  kStretch,          // an equal part of all packed sequences' keys, which its CTA finds for itself
  kFoundTile,        // a K/V head of a tile of packed sequences that its CTAs find for themselves
  kFirstQueryTile,   // kQueryTile of heads that have rows or sums of dQ before the main launch:
                     // att::heads_with_rows, att::SumHeads
  kLastQueryTile,    // kQueryTile of heads whose dQ the main launch leaves
  kKeyTile,          // `tile` keys of a (batch, kv_head)
  kKvHead,           // a (batch, kv_head)
  kHeadPart,         // one of att::head_parts of it
  kSequence,         // a sequence of the batch
  kRows,             // `tile` of the rows [batch, heads, q_len], packed [heads, q_len]
  kRangePairs,  // `tile` pairs of the block ranges of the recipe's tensors; before these, a row of
                // the tensor whose runs are worked out
  kPass         // all there is
};

// A part of the workspace, a multiple of 16 bytes; what it holds is also what field of
// att::LaunchParams it becomes. Nothing in it survives a pass. Packed sequences have no dim batch
// of rows: their rows follow one another, those of each from a multiple of length_unit on.
struct WorkspaceRegion {
  enum class Content : std::uint8_t {
    kSchedulerCounter,  // an int32
    kBlockRanges,       // of the tensor in `slot`: pairs of 4-byte values
    kRunPositions,      // int32, as many as the tensor in `of_slot` has: the tensor in `slot`
    kRowReferences,     // fp32 [batch, heads, q_len]
    kRowDeltas,         // the same
    kQuerySums,         // fp32 [batch, heads, q_len, qk]; with a sum_wave of some heads at a time
    kHeadCounters,      // att::HeadCounters [batch, kv_heads]
    kSumTurns,          // int32 [batch, heads, tiles of length_unit queries]
    kKeySums,           // fp32 [parts of a walk, batch, kv_heads, kv_len, qk]
    kValueSums,         // fp32 [parts of a walk, batch, kv_heads, kv_len, v]
    kLearnedSums,       // fp32 [batch, heads, tiles of length_unit keys, `columns`]
    kSequenceItems,     // pairs of int32: the items of packed sequences, of length_unit queries
    kKeyItems,          // the same of length_unit keys
    kPieceResults,      // fp32 [items of length_unit rows, pieces, length_unit, `columns`]
    kPieceArrivals,     // int32 [items of length_unit rows, `columns`]
    kPieceItems         // att::PieceItem: the list of pieces of packed sequences
  } content = Content::kSchedulerCounter;
  int slot = 0, of_slot = 0;
  int length_unit = 1;             // the sequence's length is rounded up to a multiple
  int columns = 0;                 // numbers a row; 0: as said above, of rows one
  int pieces = 1;                  // as Launch::pieces; nothing is kept of a single one
  bool in_parts = false;           // of kQuerySums: a row has att::head_parts times `columns`
  int sum_tile = 0, sum_wave = 0;  // of kQuerySums: keys of a tile, and att::sum_heads' wave
  bool all_have_sums = false;      // of kQuerySums with a sum_wave: all heads nevertheless
  // Of kKeySums and kValueSums: as Launch::walk_tile, of the parts that a walk is cut into; 0: one
  // set of sums, of walks that are whole.
  int walk_tile = 0;
  // Of kPieceResults and kPieceArrivals: of pieces of query tiles' keys, att::key_piece_count, as
  // many as there may be whatever the tile; else of tiles that heads of a K/V head share.
  bool of_query_tiles = false;
  bool operator==(const WorkspaceRegion&) const = default;
};

// Launch::pieces of a batch-invariant spec: where an item's keys are cut follows from their number
// alone, att::fixed_piece_count.
inline constexpr int kFixedPieces = 0;

// The same of a spec with shared prefixes: as many as the list of pieces says.
inline constexpr int kSharedPieces = -1;

// One kernel on the stream.
struct Launch {
  std::string symbol;  // of the image that all launches of a recipe share
  std::string otherwise =
      "";  // of what runs in its place, without maps, where an optional one fails
  int threads = 1;
  int shared_memory_bytes = 0;  // dynamic
  int cluster = 1;              // CTAs that take an item together, `tile` of them each
  int parts = 1;                // of the columns of a key tile's gradients, a CTA each
  int heads = 1;                // of a K/V head that an item takes abreast, its queries of each
  int pieces = 1;  // of an item's keys, at most so many CTAs: att::piece_count; or one of the above
  // Of key tiles: queries of the tiles that one visits, where this walk is cut into
  // att::walk_parts, a CTA each; 0: it is not.
  int walk_tile = 0;
  bool adds_parts = false;  // CTAs beside its items' add up what the main launch's parts left
  WorkItem item = WorkItem::kQueryTile;
  int tile = 1;
  // Grid, in the x dimension only: the CTAs of every item, or, persistent, SM count times
  // ctas_per_processor in whole clusters, if that is less.
  bool persistent = false;
  int ctas_per_processor = 1;
  // CUtensorMap kernel parameters, in this order, after the params.
  std::vector<TensorMapRecipe> tensor_maps = {};
  std::vector<WorkspaceRegion::Content> zeroed = {};  // regions that are zeroed before it
  // It may start before the launch in front has ended (templates/ptx/dependent_launch.cuh): its
  // kernel reads nothing of that one before it has waited for it, or for a counter that tells of
  // what it reads, and does not end before it. Not with regions that are zeroed in between.
  bool overlaps_previous = false;
  // Of pieces: its counters of arrivals are as the launch before has left them, whatever that was,
  // and nothing need run in front.
  bool marks_arrivals = false;
};

// A pure function of spec and plan, so a cached image needs nothing more.
struct LaunchRecipe {
  std::string symbol;            // att_sm90_fwd_bf16_d128_q128k176s2_<hash8>: of the main launch
  std::vector<Launch> launches;  // in the order of the stream
  std::vector<WorkspaceRegion> workspace;  // one after the other
  int thread_share = 1;                    // on a CPU: one in so many of the pool's threads runs it

  // The launch that the recipe is named after.
  const Launch& main() const;
  bool needs_tensor_maps() const;
};

// What is larger than 64 bits can say is this much: no memory and no grid has room for it.
inline constexpr std::int64_t kTooLarge = INT64_MAX;

// The pre-pass' view of one tensor: [rows, ceil(length / kRangeBlock)] pairs of 4-byte values.
struct RangeGeometry {
  std::int64_t rows = 1;    // product of all dims but the last
  std::int64_t length = 1;  // of the last dim
  std::int64_t pairs = 1;
};
RangeGeometry range_geometry(const expr::TensorDecl& tensor, const ProblemShape& shape);

// All functions here are pure, thread-safe and allocate nothing.
std::int64_t item_count(const AttentionSpec& spec, const LaunchRecipe& recipe, const Launch& launch,
                        const ProblemShape& shape);
// CTAs. kBadInput, id "launch-too-large", when there are more items than a kernel can number.
Result<unsigned> grid_size(const Launch& launch, std::int64_t items, int processor_count);

std::int64_t region_bytes(const AttentionSpec& spec, const WorkspaceRegion& region,
                          const ProblemShape& shape);
std::int64_t workspace_bytes(const AttentionSpec& spec, std::span<const WorkspaceRegion> regions,
                             const ProblemShape& shape);
// Whether a workspace of `promised` has room for `needed`, whatever the shape.
bool covers(std::span<const WorkspaceRegion> promised, std::span<const WorkspaceRegion> needed);

}  // namespace attune
