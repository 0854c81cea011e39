// A kernel plan: every choice that is the tuner's and not the user's. docs/plans.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "generator/plan/launch.hpp"
#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune {

enum class Family : std::uint8_t { kSm80, kSm90a, kCpu, kDecode, kSm90aOrdered, kMla, kSm90aWide };
std::string_view to_string(Family);

// mma.sync + cp.async, FlashAttention-2's split-Q scheme.
struct Sm80Plan {
  static constexpr Family kFamily = Family::kSm80;
  int tile_q = 128;
  int tile_kv = 64;
  int stages = 2;               // K/V tiles in shared memory
  int warps = 4;                // each takes tile_q / warps query rows, 16 or 32
  bool q_in_registers = false;  // else Q's fragments are read from shared memory at each use
  bool frozen_max = true;       // the softmax' reference is frozen after the first tiles
  int chunk = 32;  // keys whose scores are in registers at a time in a full tile: 16, 32 or 64
  int unroll = 1;  // chunks in one loop body
  auto operator<=>(const Sm80Plan&) const = default;
};

// mma.sync + cp.async for few queries: warps and CTAs share out an item's keys. docs/decode.md.
struct DecodePlan {
  static constexpr Family kFamily = Family::kDecode;
  int tile_q = 16;     // rows of an item: queries of the heads that share a K/V head
  int step_keys = 16;  // that a warp takes at a time
  int stages = 4;      // of these in shared memory, for each warp
  int warps = 4;
  int pieces = 1;           // of an item's keys, a CTA each; fewer where a launch has many items
  bool in_cluster = false;  // the pieces of an item are a cluster, and merge in shared memory
  bool stretches = false;   // CTAs take equal stretches of packed sequences' keys
  auto operator<=>(const DecodePlan&) const = default;
};

// mma.sync + cp.async for few queries whose V is a part of K: a CTA's warps share out a tile's
// keys, then the columns of O. docs/mla.md.
struct MlaPlan {
  static constexpr Family kFamily = Family::kMla;
  int tile_q = 16;     // rows of an item: queries of the heads that share a K/V head
  int step_keys = 32;  // of a tile
  int stages = 4;      // of these in shared memory
  int warps = 4;
  int pieces = 1;          // of an item's keys, a CTA each; fewer where a launch has many items
  bool stretches = false;  // CTAs take equal stretches of packed sequences' keys
  auto operator<=>(const MlaPlan&) const = default;
};

// What of K and V in pages is copied row by row; the rest comes in boxes of a page's rows.
enum class CopiedRows : std::uint8_t { kNone, kValues, kAll };

// TMA + wgmma, warp-specialised: one producer warp, consumer warpgroups. docs/hopper.md.
struct Sm90aPlan {
  static constexpr Family kFamily = Family::kSm90a;
  enum class Schedule : std::uint8_t {
    kSingle,       // one CTA a work item
    kPersistent,   // resident CTAs take every n-th item
    kLongestFirst  // resident CTAs take the next item off a counter, the longest first
  };
  int warpgroups = 2;           // consumers, 64 query rows each
  int tile_kv = 128;            // keys of a stage
  int stages = 2;               // K tiles, and as many V tiles, in shared memory
  int score_buffers = 2;        // pieces of a tile; 2: QK of the next one runs under a softmax
  bool q_in_registers = false;  // else the QK product reads Q from shared memory
  int cluster = 1;              // CTAs along q that share K and V by multicast
  Schedule schedule = Schedule::kPersistent;
  int heads_per_group = 0;   // dealt out together; 0: as many as L2 has room for K and V of
  bool frozen_max = true;    // steady loop without a running maximum, redone where it overflows
  bool tma_store = true;     // O through shared memory and TMA, else from registers
  bool ping_pong = false;    // warpgroups take turns to issue a tile's products
  bool p_in_shared = false;  // the PV product reads P from shared memory, else from registers
  // Query heads of an item, all of a K/V head and with the same queries: of a warpgroup one, two
  // or four. 1: its warpgroups have 64 queries each of one head.
  int heads = 1;
  CopiedRows copied_rows = CopiedRows::kNone;
  int pieces = 1;  // of an item's keys, a CTA each; fewer where results have no room
  auto operator<=>(const Sm90aPlan&) const = default;
};

// Vector-extension C++ on the host's cores, queries in the lanes. docs/cpu.md.
struct CpuPlan {
  static constexpr Family kFamily = Family::kCpu;
  int tile_q = 96;        // query rows of a work item
  int tile_kv = 128;      // keys of one softmax step, a multiple of 32 and of unroll
  int unroll = 8;         // keys (then head dims) whose sums stay in registers, and
  int columns = 3;        // vectors of queries beside each
  int vector_bytes = 64;  // 32: AVX2, 64: AVX-512
  int thread_share = 1;   // one in so many of the threads that may be used
  int pieces = 1;  // of an item's keys, merged in the end; fewer where a launch has many items
  auto operator<=>(const CpuPlan&) const = default;
};

// Vector-extension C++, the item's own rows in the lanes: keys, then queries. docs/training.md.
struct CpuBackwardPlan {
  static constexpr Family kFamily = Family::kCpu;
  int tile = 96;          // keys, then queries, of a work item
  int step = 64;          // queries, then keys, that it walks at a time, a multiple of unroll
  int unroll = 8;         // of these, or of head dims, have their sums in registers, and
  int columns = 3;        // vectors of the item's own beside each
  int vector_bytes = 64;  // 32: AVX2, 64: AVX-512
  // An item has all keys of a K/V head, and adds up the dQ of its query heads: five products in one
  // launch, not seven in two.
  bool whole_heads = false;
  bool in_parts = false;  // the same of att::head_parts of its keys; dQ is added up at the end
  auto operator<=>(const CpuBackwardPlan&) const = default;
};

// mma.sync + cp.async, dK and dV by key tiles; dQ by query tiles, deterministic, or by key tiles
// too.
struct Sm80BackwardPlan {
  static constexpr Family kFamily = Family::kSm80;
  int warps = 4;              // each owns 16 keys, then 16 queries
  int step = 32;              // queries, then keys, that they walk at a time
  int stages = 2;             // of these in shared memory
  bool adds_queries = false;  // dQ is added up in global memory: five products, else seven
  // Of those that add: which keys of the keys' kernel a warp has.
  enum class Keys : std::uint8_t { kSixteen, kByTwo, kByFour, kThirtyTwo } keys = Keys::kSixteen;
  auto operator<=>(const Sm80BackwardPlan&) const = default;
};

// TMA + wgmma, by key tiles; dQ is added up in global memory. docs/training.md.
struct Sm90aBackwardPlan {
  static constexpr Family kFamily = Family::kSm90a;
  int warpgroups = 2;              // consumers, 64 keys each
  int tile_q = 64;                 // queries of a stage
  int stages = 2;                  // Q tiles, and as many dO tiles, in shared memory
  bool rotated = false;            // without a mask: each key tile begins with another query tile
  bool keys_in_registers = false;  // K and V, on the left of S^T and dP^T
  bool takes_items = false;        // a CTA takes key tiles off a counter, else it has one
  // Of narrow heads off the counter: a warp of its own loads the keys, and all heads have sums of
  // dQ. Of wide heads that is so off the counter.
  bool keys_apart = false;
  // Where key tiles are few, keys loaded apart: CTAs share the walk of one, att::walk_parts.
  bool cuts_walks = false;
  auto operator<=>(const Sm90aBackwardPlan&) const = default;
};

// TMA + wgmma, dK and dV by key tiles and dQ by query tiles: deterministic. docs/training.md.
struct Sm90aOrderedPlan {
  static constexpr Family kFamily = Family::kSm90aOrdered;
  int tile_q = 64;     // queries of a stage of the keys' kernel
  int step_keys = 64;  // keys of a stage of the queries' kernel
  int stages = 2;      // of these in shared memory
  // Of the keys' kernel: each warpgroup has 64 keys of its own and keeps their dK and dV. Else both
  // have the same 64 keys, and each keeps one gradient.
  bool both_gradients = false;
  // Of the queries' kernel.
  int query_warpgroups = 2;        // consumers, 64 queries each
  bool rows_in_registers = false;  // Q and dO, else products read them from shared memory
  // Where key tiles are few: CTAs share the walk of one, att::walk_parts.
  bool cuts_walks = false;
  auto operator<=>(const Sm90aOrderedPlan&) const = default;
};

// The backward pass of wide heads in five products: a warpgroup makes P and dS, one dV and one dK,
// which share dQ, whose parts are added up in global memory.
struct Sm90aWidePlan {
  static constexpr Family kFamily = Family::kSm90aWide;
  int tile_kv = 80;  // keys of a CTA
  int stages = 2;    // of queries in shared memory
  auto operator<=>(const Sm90aWidePlan&) const = default;
};

struct KernelPlan {
  Pass pass = Pass::kForward;
  Target target = Target::kSm80;
  std::variant<Sm80Plan, Sm90aPlan, CpuPlan, Sm80BackwardPlan, Sm90aBackwardPlan, CpuBackwardPlan,
               DecodePlan, Sm90aOrderedPlan, MlaPlan, Sm90aWidePlan>
      tile;
  // Into how many residues its kernels take a sequence apart (generator/spec/residues.hpp); its
  // other choices are then those of the spec of one residue, at that one's shape.
  int residues = 1;
  // Whether a launch works out the runs of a tensor first (generator/spec/run_spec.hpp). Its other
  // choices are those of the spec itself.
  bool by_runs = false;
  auto operator<=>(const KernelPlan&) const = default;
  Family family() const {
    return std::visit([](const auto& family_tile) { return family_tile.kFamily; }, tile);
  }
};
// "sm80 forward sm_80 q128 k64 s2 w4 c32 u1 qreg frozen"; stable, round-trips.
std::string to_string(const KernelPlan&);
Result<KernelPlan> parse_plan(std::string_view text);

// What the cost model and the resource check need to know of a device. Values are facts of the
// device, never guesses; `device_facts(target)` gives a published part's for planning without one.
struct DeviceFacts {
  std::string name;
  Target target = Target::kSm80;
  int processor_count = 1;                // SMs, or cores
  int shared_memory_per_block_bytes = 0;  // opt-in maximum
  int shared_memory_per_processor_bytes = 0;
  int registers_per_processor = 65536;  // vector registers on the CPU: 32 with AVX-512, else 16
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  double clock_ghz = 1;
  double matrix_tflops = 1;  // dense, the spec's dtype
  double memory_gb_per_s = 1;
};
DeviceFacts device_facts(Target target);

struct PlanResources {
  int threads = 0;
  int shared_memory_bytes = 0;
  int registers_per_thread = 0;  // estimate
};

// A matrix that a kernel keeps in shared memory throughout, padding included.
struct SharedMatrix {
  std::string_view name;  // "K"
  int stages = 1;
  int rows = 0, columns = 0;  // of a stage, in elements of the spec's dtype
};

// The score tile that a plan works on at a time.
struct TileShape {
  int q = 0, kv = 0;
};

// The families that can serve `spec` on `target`, best first; empty with a reason when none.
Result<std::vector<Family>> families_for(const AttentionSpec& spec, Target target,
                                         Pass pass = Pass::kForward);
// Every plan of the family that is legal and fits `device`; deterministic order.
std::vector<KernelPlan> legal_plans(const AttentionSpec& spec, Family family,
                                    const DeviceFacts& device, Pass pass = Pass::kForward);
// OK, or kUnsupported: the plan takes sequences apart, and the spec has no residues or others; or
// it works out runs, and the spec has none.
Status check_worked(const AttentionSpec& spec, const KernelPlan& plan);
// OK, or kUnsupported saying which limit the plan breaks.
Status check_plan(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
PlanResources resources(const AttentionSpec& spec, const KernelPlan& plan);
// Predicted time of one launch, microseconds; infinite of a shape that cannot be taken apart into
// the plan's residues.
double cost_us(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
               const DeviceFacts& device);
// All legal plans of every family that serves `spec` on the device, the cost model's cheapest
// first; without those that take sequences apart which cannot be; of equal launches one.
Result<std::vector<KernelPlan>> plans_by_cost(const AttentionSpec& spec, const ProblemShape& shape,
                                              const DeviceFacts& device,
                                              Pass pass = Pass::kForward);
// The cost model's choice over all families for the target: the first of plans_by_cost(), in a
// small part of its time from the spec's second shape on. (Where runs alone would bring a family to
// the front it is not.)
Result<KernelPlan> default_plan(const AttentionSpec& spec, const ProblemShape& shape,
                                const DeviceFacts& device, Pass pass = Pass::kForward);
LaunchRecipe launch_recipe(const AttentionSpec& spec, const KernelPlan& plan);
// What the plan's kernels and its recipe are of: `spec`, the spec of one of its residues, or that
// with runs.
AttentionSpec worked_spec(const AttentionSpec& spec, const KernelPlan& plan);
// The plan as one of that spec.
KernelPlan worked_plan(const KernelPlan& plan);
// The shape that item_count(), grid_size() and workspace_bytes() take of a plan's recipe.
ProblemShape worked_shape(const ProblemShape& shape, const KernelPlan& plan);
// Queries and keys of the tiles by which a plan lists the work of packed sequences; 0: it has no
// such list.
struct ItemTiles {
  int queries = 0, keys = 0;
};
ItemTiles item_tiles(const AttentionSpec& spec, const KernelPlan& plan);
// Regions that cover those of every plan of the pass, of whatever family serves the target.
std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Pass pass, Target target);
TileShape tile_shape(const KernelPlan& plan);
// What of `resources(...).shared_memory_bytes` matrices occupy; the rest is barriers, schedules and
// what lies there for a while. Empty for kernels without shared memory.
std::vector<SharedMatrix> shared_matrices(const AttentionSpec& spec, const KernelPlan& plan);
// The cost model's choice among plans that take no sequence apart, and among those of them that
// take any strides; kUnsupported when there is none.
Result<KernelPlan> plan_for_any_length(const AttentionSpec& spec, Pass pass,
                                       const ProblemShape& shape, const DeviceFacts& device);
Result<KernelPlan> plan_for_any_strides(const AttentionSpec& spec, Pass pass,
                                        const ProblemShape& shape, const DeviceFacts& device);

}  // namespace attune
