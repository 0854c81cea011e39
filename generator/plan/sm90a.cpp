// The sm90a family's plans. What they mean in the kernel: templates/kernels/sm90_forward.cuh and
// docs/hopper.md.
#include "generator/plan/sm90a.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/expr/lowering.hpp"
#include "generator/expr/score_line.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/running_maximum.hpp"
#include "generator/plan/sm90a_invariant.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/sm90a_pieces.hpp"
#include "generator/plan/sm90a_score_cost.hpp"
#include "generator/plan/sm90a_text.hpp"
#include "generator/plan/wgmma.hpp"

namespace attune {
namespace {

using sm90a::has_launch_in_front;
using sm90a::kGroupBytes;
using sm90a::kRows;
using sm90a::Schedule;
using sm90a::stages_in_q;
using sm90a::tile_of;

constexpr int kItemSlots = 4;
constexpr int kStoreRows = 16;  // of O, by a warp
constexpr int kItemSlotBytes = 64;
constexpr int kSharedLimitBytes = 232448;  // a CTA's most on sm_90a
// Columns of the heads whose query tiles are dealt out together, but for the last ones: few, so
// that K and V of new heads are not asked of memory in bursts. Of 1 to 64 heads level with the best
// at every length and head dim; 512 and 1024 tokens gain 7 and 2 % over as many as L2 holds.
constexpr int kGroupColumns = 2048;

// With room for so many slabs of each warpgroup's O beside its Q.
int shared_bytes(const AttentionSpec& spec, const Sm90aPlan& tile, int output_slabs) {
  const int p_slabs = tile.p_in_shared ? slabs(tile.tile_kv / tile.score_buffers) : 0;
  const int row_bytes = (slabs(spec.head_dim_qk) + output_slabs + p_slabs) * kSlabRowBytes;
  const int stage_bytes =
      (slabs(spec.head_dim_qk) + slabs(spec.head_dim_v)) * tile.tile_kv * kSlabRowBytes;
  const int matrices = tile.warpgroups * kRows * row_bytes + tile.stages * stage_bytes;
  const int stage_barriers = is_packed(spec) ? 5 : 4;
  const int barriers =
      8 * (stage_barriers * tile.stages + 2 * tile.warpgroups + 2 * kItemSlots + 1);
  const int bytes =
      (matrices + barriers + 15) / 16 * 16 + kItemSlotBytes * kItemSlots + 8 * tile.stages;
  return bytes + sm90a::folded_bytes(spec, tile, bytes);
}

// Of a warpgroup's O, how many are staged for TMA at a time in a buffer of their own: all, or what
// there is room for, at least one.
int output_slabs(const AttentionSpec& spec, const Sm90aPlan& tile) {
  if (!tile.tma_store || stages_in_q(spec, tile)) return 0;
  int count = slabs(spec.head_dim_v);
  while (count > 1 && shared_bytes(spec, tile, count) > kSharedLimitBytes) --count;
  return count;
}

// templates/tile/sm90_layout.cuh asserts that its layout needs no more.
int shared_bytes(const AttentionSpec& spec, const Sm90aPlan& tile) {
  return shared_bytes(spec, tile, output_slabs(spec, tile));
}

// What setmaxnreg leaves a thread of the producer and of a consumer. Together they may take no more
// than the kernel was started with (templates/tile/sm90_cta.cuh asserts it): a warpgroup that
// asks for what is not there waits for ever.
struct RegisterSplit {
  int producer, consumer;
};
RegisterSplit register_split(const Sm90aPlan& tile) {
  if (tile.warpgroups == 3) return {32, 160};
  if (tile.warpgroups == 2) return {40, 232};
  return {104, 256};
}

Status serves(const AttentionSpec& spec, Target target) {
  if (target != Target::kSm90a) return plan_unsupported("the sm90a family needs an sm_90a GPU");
  ATT_CHECK(check_plain_cache(spec, "sm90a"));
  if (spec.dtype != DType::kF16 && spec.dtype != DType::kBf16) {
    return plan_unsupported(
        fmt::format("the sm90a family computes in fp16 and bf16, not {}", to_string(spec.dtype)));
  }
  if (spec.batch_invariant && has_dropout(spec)) {
    return plan_unsupported("the sm90a family has no batch-invariant forward pass with dropout");
  }
  // Batch-invariant specs have a kernel without columns that pad O.
  const int step = spec.batch_invariant ? 16 : 8;
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 16 || dim > 256 || dim % step != 0) {
      return plan_unsupported(fmt::format(
          "the sm90a family has head dims 16 to 256 in steps of {}, not {}", step, dim));
    }
  }
  return ok_status();
}

// What a score takes beside the tiles: of 60 plans whose estimate for a softcap is within 8 of the
// limit none is serialised, and one spills (4 bytes).
int registers_of_score(const AttentionSpec& spec) {
  const bool reads = !spec.environment.tensors.empty();
  const bool has_position = expr::depends_on(spec.score, expr::Variable::kQIdx) ||
                            expr::depends_on(spec.score, expr::Variable::kKvIdx);
  if (!reads && !has_position) return 16;
  // With 24, tiles of 112 keys spill 178 bytes.
  return !reads || expr::score_line(spec.score) ? 28 : 48;  // loads need addresses
}

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aPlan& tile = tile_of(plan);
  PlanResources resources;
  resources.threads = 128 * (tile.warpgroups + 1);
  resources.shared_memory_bytes = shared_bytes(spec, tile);
  if (spec.batch_invariant) {
    resources.registers_per_thread = sm90a::invariant_registers(spec);
    return resources;
  }
  // Fragments a consumer thread holds through the steady loop: scores, P of one piece, O, and Q
  // when it stays; the rest is addresses, ring positions and row state.
  const int piece_keys = tile.tile_kv / tile.score_buffers;
  int score_registers = spec.score ? registers_of_score(spec) : 0;
  // Three warpgroups' tile of 64 keys beside ALiBi under a causal mask: 168 fragments were
  // estimated, none are spilled, and at d 128 it takes 0.88 to 0.99 of the time of all that was
  // legal.
  if (spec.score && tile.warpgroups == 3 && tile.score_buffers == 1 && tile.tile_kv == 64 &&
      tile.frozen_max && !tile.q_in_registers && !tile.p_in_shared && sm90a::is_plain_band(spec) &&
      expr::score_line(spec.score)) {
    score_registers = 20;
  }
  // Masked pieces of more than 64 keys are serialised (C7512) from 188 fragments on, others not.
  const bool is_wide = tile.score_buffers == 2 && piece_keys > 64 && tile.warpgroups < 3;
  const int wide_mask = spec.environment.tensors.empty() ? 56 : 72;
  // With one buffer of three warpgroups' a mask of numbers alone needs no more than none.
  const bool is_narrow =
      tile.warpgroups == 3 && tile.score_buffers == 1 && spec.environment.tensors.empty();
  // Of three warpgroups' two buffers, 120 fragments beside a causal mask are serialised (d 80); of
  // one, 124 beside documents spill, and lose 7 %. Pieces of 80 keys take 4 more: beside 116
  // fragments (d 32) every mask was serialised.
  const int narrow_mask = tile.warpgroups < 3 ? 36 : piece_keys > 64 ? 46 : 42;
  const int rest = !spec.mask || is_narrow ? 28 : is_wide ? wide_mask : narrow_mask;
  // Of Q of 192 columns beside O of 128 every mask was serialised, of O of 112 none.
  const int wide_q = spec.mask && tile.q_in_registers && spec.head_dim_qk > 128 ? 16 : 0;
  // Where a packed sequence lies and how long it is: 154 fragments of three warpgroups beside
  // documents spill 468 bytes.
  const int packed_registers = is_packed(spec) ? 8 : 0;
  resources.registers_per_thread = tile.score_buffers * piece_keys / 2 +
                                   (tile.p_in_shared ? 8 : piece_keys / 4) +
                                   whole_steps(spec.head_dim_v) / 2 +
                                   (tile.q_in_registers ? whole_steps(spec.head_dim_qk) / 4 : 0) +
                                   rest + wide_q + score_registers + packed_registers;
  return resources;
}

// A warpgroup alone has 16 more, which stay free: without them ptxas packs what a mask's loads say
// into registers, and takes longer.
int registers_to_use(const Sm90aPlan& tile) { return std::min(register_split(tile).consumer, 240); }

int shared_limit(const DeviceFacts& device) {
  return std::min(kSharedLimitBytes, device.shared_memory_per_block_bytes);
}

bool fits(const PlanResources& needs, const Sm90aPlan& tile, const DeviceFacts& device) {
  return needs.shared_memory_bytes <= shared_limit(device) &&
         needs.registers_per_thread <= registers_to_use(tile);
}

// One walk over the keys serves all heads of an item.
Status check_heads_abreast(const AttentionSpec& spec, const Sm90aPlan& tile) {
  const int of_warpgroup = tile.heads / tile.warpgroups;
  if (tile.heads % tile.warpgroups != 0 ||
      (of_warpgroup != 1 && of_warpgroup != 2 && of_warpgroup != 4)) {
    return plan_unsupported(
        fmt::format("1, 2 or 4 heads a warpgroup, not {} of {}", tile.heads, tile.warpgroups));
  }
  if (tile.cluster > 1) return plan_unsupported("a cluster shares out queries, not heads");
  if (spec.mask && expr::depends_on(spec.mask, expr::Variable::kHead)) {
    return plan_unsupported("heads that have masks of their own do not walk over keys together");
  }
  return ok_status();
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aPlan& tile = tile_of(plan);
  if (spec.batch_invariant) ATT_CHECK(sm90a::check_invariant(tile));
  if (tile.warpgroups < 1 || tile.warpgroups > 3) {
    return plan_unsupported(fmt::format("1 to 3 warpgroups, not {}", tile.warpgroups));
  }
  if (tile.score_buffers < 1 || tile.score_buffers > 2) {
    return plan_unsupported(fmt::format("1 or 2 score buffers, not {}", tile.score_buffers));
  }
  if (tile.cluster < 1 || tile.cluster > 2) {
    return plan_unsupported(fmt::format("clusters of 1 or 2, not {}", tile.cluster));
  }
  if (tile.cluster > 1 && tile.schedule == Schedule::kLongestFirst) {
    return plan_unsupported("the CTAs of a cluster cannot draw from the counter separately");
  }
  if (tile.cluster > 1 && is_paged(spec)) {
    return plan_unsupported("the CTAs of a cluster do not share copies of pages");
  }
  const int step = 16 * tile.score_buffers * tile.cluster;
  if (tile.tile_kv < step || tile.tile_kv > 256 || tile.tile_kv % step != 0) {
    return plan_unsupported(
        fmt::format("a kv tile of {} to 256 in steps of {}, not {}", step, step, tile.tile_kv));
  }
  if (has_dropout(spec) && tile.tile_kv / tile.score_buffers % 32 != 0) {
    return plan_unsupported(
        "dropout draws for 32 keys at a time: a score buffer holds 32, 64, ...");
  }
  if (tile.stages < 2 || tile.stages > 8) {
    return plan_unsupported(fmt::format("2 to 8 stages, not {}", tile.stages));
  }
  if (tile.heads != 1) ATT_CHECK(check_heads_abreast(spec, tile));
  if (tile.copied_rows != CopiedRows::kNone && (!is_paged(spec) || spec.batch_invariant)) {
    return plan_unsupported("rows are copied one by one from pages, and not in a fixed order");
  }
  if (tile.ping_pong && tile.warpgroups == 1) {
    return plan_unsupported("a warpgroup alone takes no turns");
  }
  if (tile.p_in_shared && tile.frozen_max && spec.score &&
      expr::depends_on(spec.score, expr::Variable::kKvIdx)) {
    return plan_unsupported("sums of scores by key are re-centred, and P with them, in registers");
  }
  ATT_CHECK(check_reference(spec, tile.frozen_max));
  if (tile.pieces != 1) ATT_CHECK(sm90a::check_pieces(spec, tile));
  if (tile.heads_per_group < 0) return plan_unsupported("a negative number of heads a group");
  const PlanResources needs = resources_of(spec, plan);
  ATT_CHECK(check_shared_memory(needs, shared_limit(device), device));
  const int most = registers_to_use(tile);
  if (needs.registers_per_thread > most) {
    return plan_unsupported(
        fmt::format("about {} registers a thread, {} are there", needs.registers_per_thread, most));
  }
  return ok_status();
}

// Query heads of an item, where they share K and V and have too few queries for more than one
// warpgroup. Of packed sequences, among which single tokens are, for one as well.
std::vector<int> head_choices(const AttentionSpec& spec, const Sm90aPlan& tile) {
  constexpr int kMostHeads = 8;
  std::vector<int> choices = {1};
  for (const int of_warpgroup : {1, 2, 4}) {
    const int heads = of_warpgroup * tile.warpgroups;
    if (of_warpgroup > 1 && (!is_packed(spec) || heads > kMostHeads)) break;
    if (heads > 1) choices.push_back(heads);
  }
  return choices;
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  const auto add = [&](const Sm90aPlan& tile) {
    const KernelPlan plan{.pass = Pass::kForward, .target = device.target, .tile = tile};
    if (check(spec, plan, device).ok()) plans.push_back(plan);
  };
  const auto add_pieces = [&](Sm90aPlan tile) {
    for (const int pieces : sm90a::piece_choices(spec)) {
      tile.pieces = pieces;
      for (const int heads : head_choices(spec, tile)) {
        tile.heads = heads;
        add(tile);
      }
    }
  };
  // How items follow one another hardly depends on the tile; a plan has few choices there. Turns
  // are level to 5 % slower where products are in flight under every softmax, as with two buffers
  // (H200, d 64 to 256).
  const auto add_orders = [&](Sm90aPlan tile) {
    KernelPlan plan{.pass = Pass::kForward, .target = device.target, .tile = tile};
    // The same tile is 4 to 6 % slower with P in shared memory (H200, d 128 and 256).
    tile.p_in_shared = resources_of(spec, plan).registers_per_thread > registers_to_use(tile);
    plan.tile = tile;
    // check() would say so of each order, at length.
    if (!fits(resources_of(spec, plan), tile, device)) return;
    const bool may_take_turns = tile.warpgroups > 1 && tile.score_buffers == 1 && tile.cluster == 1;
    for (const auto& [frozen_max, ping_pong] :
         {std::pair{true, false}, {true, true}, {false, false}, {false, true}}) {
      if (ping_pong && !may_take_turns) continue;
      // Elsewhere it is for scores that nothing else serves.
      if (!frozen_max && ping_pong && !takes_running_maximum_alone(spec)) continue;
      tile.frozen_max = frozen_max;
      tile.ping_pong = ping_pong;
      tile.schedule = Schedule::kLongestFirst;
      tile.heads_per_group = kGroupColumns / spec.head_dim_v;
      for (const int heads : head_choices(spec, tile)) {
        tile.heads = heads;
        if (heads == 1 || (tile.tma_store && !ping_pong)) add(tile);
      }
      tile.heads = 1;
      const bool may_be_cut =
          tile.tma_store && !ping_pong && tile.cluster == 1 && !spec.batch_invariant;
      if (may_be_cut && is_packed(spec)) add_pieces(tile);
      for (const auto schedule : {Schedule::kPersistent, Schedule::kSingle}) {
        tile.schedule = schedule;
        tile.heads_per_group = 1;
        add(tile);
      }
      if (may_be_cut && !is_packed(spec)) add_pieces(tile);
      // Without a counter to be cleared before each launch: two microseconds, which short sequences
      // feel more than items dealt out unevenly.
      if (spec.mask) {
        tile.schedule = Schedule::kPersistent;
        tile.heads_per_group = kGroupColumns / spec.head_dim_v;
        add(tile);
      }
    }
  };
  for (const int warpgroups : {2, 3, 1}) {
    for (const int score_buffers : {2, 1}) {
      for (int tile_kv = 64; tile_kv <= 256; tile_kv += 16 * score_buffers) {
        for (const int stages : {2, 3, 4}) {
          for (const bool q_in_registers : {true, false}) {
            for (const bool tma_store : {true, false}) {
              for (const int cluster : {1, 2}) {
                add_orders({.warpgroups = warpgroups,
                            .tile_kv = tile_kv,
                            .stages = stages,
                            .score_buffers = score_buffers,
                            .q_in_registers = q_in_registers,
                            .cluster = cluster,
                            .tma_store = tma_store});
              }
            }
          }
        }
      }
    }
  }
  return plans;
}

constexpr WorkspaceRegion kCounter{.content = WorkspaceRegion::Content::kSchedulerCounter};

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  using Tensor = TensorMapRecipe::Tensor;
  const Sm90aPlan& tile = tile_of(plan);
  const PlanResources needs = resources_of(spec, plan);
  Launch main{.symbol = "",
              .threads = needs.threads,
              .shared_memory_bytes = needs.shared_memory_bytes,
              .cluster = tile.cluster,
              .heads = tile.heads,
              .item = WorkItem::kQueryTile,
              .tile = sm90a::item_queries(tile),
              .persistent = tile.schedule != Schedule::kSingle};
  const TensorMapRecipe queries =
      slab_map(Tensor::kQuery, std::min(sm90a::item_queries(tile), kRows));
  const auto keys = [&](Tensor tensor, bool by_rows) {
    // Of small pages there are no maps; the kernel does not look at what stands in their places.
    return by_rows ? queries : slab_map(tensor, tile.tile_kv / tile.cluster);
  };
  main.tensor_maps = {queries, keys(Tensor::kKey, tile.copied_rows == CopiedRows::kAll),
                      keys(Tensor::kValue, tile.copied_rows != CopiedRows::kNone),
                      slab_map(Tensor::kOutput, kStoreRows)};
  LaunchRecipe recipe;
  main.overlaps_previous = has_launch_in_front(spec);
  if (tile.schedule == Schedule::kLongestFirst) {
    if (!has_launch_in_front(spec)) main.zeroed = {kCounter.content};
    recipe.workspace = {kCounter};
  }
  if (tile.pieces > 1) sm90a::add_pieces(spec, tile, main, recipe.workspace);
  recipe.launches.push_back(std::move(main));
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  std::vector<WorkspaceRegion> regions = {kCounter};
  if (spec.batch_invariant) return regions;
  for (const WorkspaceRegion& region : sm90a::piece_regions(spec)) regions.push_back(region);
  return regions;
}

TileShape tile_shape_of(const KernelPlan& plan) {
  return {sm90a::item_queries(tile_of(plan)), tile_of(plan).tile_kv};
}

std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aPlan& tile = tile_of(plan);
  const int rows = tile.warpgroups * kRows;
  const auto padded = [](int columns) { return slabs(columns) * kSlabColumns; };
  std::vector<SharedMatrix> matrices = {{"K", tile.stages, tile.tile_kv, padded(spec.head_dim_qk)},
                                        {"V", tile.stages, tile.tile_kv, padded(spec.head_dim_v)},
                                        {"Q", 1, rows, padded(spec.head_dim_qk)}};
  if (tile.p_in_shared)
    matrices.push_back({"P", 1, rows, padded(tile.tile_kv / tile.score_buffers)});
  if (const int staged = output_slabs(spec, tile); staged > 0)
    matrices.push_back({"O", 1, rows, staged * kSlabColumns});
  return matrices;
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aPlan& tile = tile_of(plan);
  const RegisterSplit registers = register_split(tile);
  const std::string_view element = wgmma_element(spec.dtype);
  const int piece_keys = tile.tile_kv / tile.score_buffers;
  const WgmmaChain qk{.name = "multiply_qk",
                      .element = element,
                      .columns = piece_keys,
                      .steps = whole_steps(spec.head_dim_qk) / 16,
                      .accumulates = false,
                      .a_in_registers = tile.q_in_registers,
                      .transposes_b = false};
  const WgmmaChain pv{.name = "multiply_pv",
                      .element = element,
                      .columns = whole_steps(spec.head_dim_v),
                      .steps = piece_keys / 16,
                      .accumulates = true,
                      .a_in_registers = !tile.p_in_shared,
                      .transposes_b = true};
  return fmt::format(
      "constexpr int kWarpgroups = {};\n"
      "constexpr int kTileKv = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr int kScoreBuffers = {};\n"
      "constexpr bool kQInRegisters = {};\n"
      "constexpr bool kPInShared = {};\n"
      "constexpr int kItemHeads = {};\n"
      "constexpr bool kCopiesRows = {};\n"
      "constexpr bool kCopiesKeyRows = {};\n"
      "constexpr int kKeyPieces = {};\n"
      "constexpr bool kHasLaunchInFront = {};\n"
      "constexpr bool kFindsItems = {};\n"
      "constexpr int kCluster = {};\n"
      "enum class Schedule {{ single, persistent, longest_first }};\n"
      "constexpr Schedule kSchedule = Schedule::{};\n"
      "constexpr int kHeadsPerGroup = {};\n"
      "constexpr long long kGroupBytes = {};\n"
      "constexpr bool kFirstTileFirst = {};\n"
      "constexpr bool kFrozenMax = {};\n"
      "constexpr bool kSameBits = {};\n"
      "constexpr bool kTmaStore = {};\n"
      "constexpr bool kStagesInQ = {};\n"
      "constexpr int kOutputSlabs = {};\n"
      "constexpr bool kPingPong = {};\n"
      "constexpr int kProducerRegisters = {};\n"
      "constexpr int kConsumerRegisters = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "\n"
      "// The products of a piece of a tile: S = Q K^T and O += P V.\n"
      "{}{}",
      tile.warpgroups, tile.tile_kv, tile.stages, tile.score_buffers, tile.q_in_registers,
      tile.p_in_shared, tile.heads, tile.copied_rows != CopiedRows::kNone,
      tile.copied_rows == CopiedRows::kAll, tile.pieces, has_launch_in_front(spec),
      sm90a::finds_items(spec, tile), tile.cluster, sm90a::schedule_constant(tile.schedule),
      tile.heads_per_group, kGroupBytes, has_long_first_tile(spec), tile.frozen_max,
      spec.deterministic, tile.tma_store, stages_in_q(spec, tile), output_slabs(spec, tile),
      tile.ping_pong, registers.producer, registers.consumer,
      resources_of(spec, plan).shared_memory_bytes, wgmma_function(qk), wgmma_function(pv));
}

}  // namespace

bool sm90a::has_launch_in_front(const AttentionSpec& spec) {
  return is_packed(spec) || !expr::range_slots(spec.mask).empty();
}

bool sm90a::stages_in_q(const AttentionSpec& spec, const Sm90aPlan& tile) {
  return tile.tma_store && tile.q_in_registers && spec.head_dim_v <= spec.head_dim_qk &&
         shared_bytes(spec, tile, slabs(spec.head_dim_v)) > kSharedLimitBytes;
}

const FamilyOperations& sm90a_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm90a,
      .pass = Pass::kForward,
      .name = "sm90a",
      .symbol_name = "sm90",
      .template_path = "templates/kernels/sm90_forward.cuh",
      .template_path_invariant = "templates/kernels/sm90_invariant_forward.cuh",
      .serves = serves,
      .legal_plans = legal,
      .check = check,
      .resources = resources_of,
      .plan_cost = sm90a::plan_cost,
      .tiling = sm90a::tiling,
      .shape_cost = sm90a::shape_cost,
      .need_not_be_measured = sm90a::has_fewer_pieces,
      .launch_recipe = recipe,
      .widest_workspace = widest_workspace,
      .takes_any_strides = false,
      .tile_shape = tile_shape_of,
      .shared_matrices = shared_matrices_of,
      .choices = sm90a::choices,
      .tile_text = sm90a::tile_text,
      .parse_tile = sm90a::parse_tile,
      .symbol_part = sm90a::symbol_part,
      .head_constants = head_constants,
  };
  return kOperations;
}

}  // namespace attune
