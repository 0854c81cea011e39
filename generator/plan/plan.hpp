// A kernel plan: every choice that is the tuner's and not the user's. docs/plans.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune {

enum class Family : std::uint8_t { kSm80, kSm90a, kCpu };
std::string_view to_string(Family);

// mma.sync + cp.async, FlashAttention-2's split-Q scheme.
struct Sm80Plan {
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

// TMA + wgmma, warp-specialised: one producer warp, consumer warpgroups. docs/hopper.md.
struct Sm90aPlan {
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
  auto operator<=>(const Sm90aPlan&) const = default;
};

// Vector-extension C++ on the host's cores, queries in the lanes. docs/cpu.md.
struct CpuPlan {
  int tile_q = 96;        // query rows of a work item
  int tile_kv = 128;      // keys of one softmax step, a multiple of 32 and of unroll
  int unroll = 8;         // keys (then head dims) whose sums stay in registers, and
  int columns = 3;        // vectors of queries beside each
  int vector_bytes = 64;  // 32: AVX2, 64: AVX-512
  int thread_share = 1;   // one in so many of the threads that may be used
  auto operator<=>(const CpuPlan&) const = default;
};

struct KernelPlan {
  Pass pass = Pass::kForward;
  Target target = Target::kSm80;
  std::variant<Sm80Plan, Sm90aPlan, CpuPlan> tile;
  auto operator<=>(const KernelPlan&) const = default;
  Family family() const { return static_cast<Family>(tile.index()); }
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

// One TMA descriptor, encoded by the host at each launch: the tensor as (dim, seq, heads, batch)
// with the caller's strides, a box of box_columns x box_rows x 1 x 1, zeros out of range.
struct TensorMapRecipe {
  enum class Tensor : std::uint8_t { kQuery, kKey, kValue, kOutput } tensor = Tensor::kQuery;
  int box_columns = 64;     // along the head dim, elements, at most swizzle_bytes
  int box_rows = 64;        // along the sequence, <= 256
  int swizzle_bytes = 128;  // 0, 32, 64 or 128
};

struct PlanResources {
  int threads = 0;
  int shared_memory_bytes = 0;
  int registers_per_thread = 0;  // estimate
};

// How a host must launch a plan's kernel: a pure function of spec and plan, so a cached cubin needs
// nothing more. Work items are ceil(q_len / tile_q) * heads * batch, q tiles fastest, and the grid
// has the x dimension only.
struct LaunchRecipe {
  std::string symbol;  // att_sm90_fwd_bf16_d128_q128k176s2_<hash8>
  int threads = 0;
  int thread_share = 1;         // on a CPU: one in so many of the pool's threads runs it
  int shared_memory_bytes = 0;  // dynamic
  int tile_q = 0;               // query rows a work item
  int tile_kv = 0;
  int cluster = 1;
  // Grid: persistent: SM count times ctas_per_processor in whole clusters, at most one CTA a work
  // item; else one CTA a work item, the q tiles of a head rounded up to whole clusters.
  bool persistent = false;
  int ctas_per_processor = 1;  // when persistent
  // CUtensorMap kernel parameters, in this order, after ForwardParams; empty: none.
  std::vector<TensorMapRecipe> tensor_maps;
  bool needs_scheduler_counter = false;  // an int32 in the workspace, zeroed before each launch
  // Tensors whose block ranges the pre-pass of templates/kernels/block_ranges.cuh must make first.
  std::vector<int> range_slots;
};

// The families that can serve `spec` on `target`, best first; empty with a reason when none.
Result<std::vector<Family>> families_for(const AttentionSpec& spec, Target target);
// Every plan of the family that is legal and fits `device`; deterministic order.
std::vector<KernelPlan> legal_plans(const AttentionSpec& spec, Family family,
                                    const DeviceFacts& device);
// OK, or kUnsupported saying which limit the plan breaks.
Status check_plan(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
PlanResources resources(const AttentionSpec& spec, const KernelPlan& plan);
// Predicted time of one launch, microseconds.
double cost_us(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
               const DeviceFacts& device);
// All legal plans of every family that serves `spec` on the device, the cost model's cheapest
// first.
Result<std::vector<KernelPlan>> plans_by_cost(const AttentionSpec& spec, const ProblemShape& shape,
                                              const DeviceFacts& device);
// The cost model's choice over all families for the target.
Result<KernelPlan> default_plan(const AttentionSpec& spec, const ProblemShape& shape,
                                const DeviceFacts& device);
LaunchRecipe launch_recipe(const AttentionSpec& spec, const KernelPlan& plan);

}  // namespace attune
