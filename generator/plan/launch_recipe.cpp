// A plan's launches and workspace: what its family asks for, and before it the pre-pass of block
// ranges and the list of packed sequences' items, which are every family's.
#include <fmt/format.h>

#include <algorithm>

#include "generator/expr/intervals.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/plan.hpp"
#include "generator/spec/residues.hpp"
#include "generator/support/hash.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

std::vector<WorkspaceRegion> pre_pass_regions(const AttentionSpec& spec) {
  std::vector<WorkspaceRegion> regions;
  for (const int slot : expr::range_slots(spec.mask)) {
    regions.push_back({.content = WorkspaceRegion::Content::kBlockRanges, .slot = slot});
  }
  if (!spec.runs) return regions;
  for (const int slot : {spec.runs->tensors.begin, spec.runs->tensors.end}) {
    regions.push_back({.content = WorkspaceRegion::Content::kRunPositions,
                       .slot = slot,
                       .of_slot = spec.runs->numbers});
  }
  return regions;
}

// Block ranges come before whatever classifies tiles.
void add_pre_pass(const AttentionSpec& spec, const KernelPlan& plan, LaunchRecipe& recipe) {
  const std::vector<WorkspaceRegion> ranges = pre_pass_regions(spec);
  if (ranges.empty()) return;
  const bool on_cpu = plan.target == Target::kCpu;
  const int pairs_of_cta = spec.runs ? att::kRunThreads / 32 : att::kRangePairsOfCta;
  recipe.workspace.insert(recipe.workspace.end(), ranges.begin(), ranges.end());
  recipe.launches.insert(recipe.launches.begin(),
                         {.symbol = "_ranges",
                          .threads = on_cpu ? 1 : 32 * pairs_of_cta,
                          .item = WorkItem::kRangePairs,
                          .tile = on_cpu ? att::kRangePairsOfCpuItem : pairs_of_cta});
}

bool takes_items(const Launch& launch) {
  return launch.item == WorkItem::kSequenceTile || launch.item == WorkItem::kSequenceKeyTile ||
         launch.item == WorkItem::kListedPiece || launch.item == WorkItem::kStretch;
}

// The lists of items of packed sequences come before the launches that take them. A family that
// lists pieces has a region for them of its own.
void add_item_list(const AttentionSpec& spec, const KernelPlan& plan, LaunchRecipe& recipe) {
  using Content = WorkspaceRegion::Content;
  if (!is_packed(spec)) return;
  for (Launch& launch : recipe.launches) {
    if (launch.symbol == "_rows") {
      // Tiles of all tokens, whatever sequence they are of: it needs no list.
      if (launch.item == WorkItem::kQueryTile) launch.item = WorkItem::kSequenceTile;
    } else if (launch.item == WorkItem::kQueryTile || launch.item == WorkItem::kPackedQueryTile) {
      launch.item = WorkItem::kSequenceTile;
      recipe.workspace.push_back(
          {.content = Content::kSequenceItems, .length_unit = launch.tile * launch.cluster});
    } else if (launch.item == WorkItem::kKeyTile) {
      launch.item = WorkItem::kSequenceKeyTile;
      recipe.workspace.push_back(
          {.content = Content::kKeyItems, .length_unit = launch.tile * launch.cluster});
    }
  }
  const auto main = std::ranges::find(recipe.launches, "", &Launch::symbol);
  if (!takes_items(*main) || main->marks_arrivals) return;
  const bool on_cpu = plan.target == Target::kCpu;
  Launch items = {
      .symbol = "_items", .threads = on_cpu ? 1 : att::kItemThreads, .item = WorkItem::kPass};
  // The list and what is made of the rows need nothing of one another: where launches overlap the
  // list comes first, and a CTA makes it while the others make the rows.
  const bool makes_rows_meanwhile = main->overlaps_previous && main != recipe.launches.begin();
  if (makes_rows_meanwhile) recipe.launches.front().overlaps_previous = true;
  // Counters are zeroed before the list is made, which the main launch may begin under.
  if (main->overlaps_previous) std::swap(items.zeroed, main->zeroed);
  if (main->pieces == kSharedPieces) {
    // Each sequence is compared with the next one by a CTA, which counts itself.
    items.item = WorkItem::kSequence;
    items.zeroed = {WorkspaceRegion::Content::kPieceArrivals};
  }
  recipe.launches.insert(makes_rows_meanwhile ? recipe.launches.begin() : main, std::move(items));
}

}  // namespace

ItemTiles item_tiles(const AttentionSpec& spec, const KernelPlan& plan) {
  using Content = WorkspaceRegion::Content;
  ItemTiles tiles;
  for (const WorkspaceRegion& region : launch_recipe(spec, plan).workspace) {
    if (region.content == Content::kSequenceItems) tiles.queries = region.length_unit;
    if (region.content == Content::kKeyItems) tiles.keys = region.length_unit;
  }
  return tiles;
}

LaunchRecipe launch_recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  if (works_on_another_spec(plan)) return launch_recipe(worked_spec(spec, plan), worked_plan(plan));
  const FamilyOperations* family = family_operations(plan);
  if (family == nullptr) return {};
  LaunchRecipe recipe = family->launch_recipe(spec, plan);
  add_item_list(spec, plan, recipe);
  add_pre_pass(spec, plan, recipe);
  const std::string dims = spec.head_dim_qk == spec.head_dim_v
                               ? fmt::format("d{}", spec.head_dim_qk)
                               : fmt::format("d{}x{}", spec.head_dim_qk, spec.head_dim_v);
  const std::string hash = hash128_hex(canonical_text(spec) + "\n" + to_string(plan)).substr(0, 8);
  recipe.symbol = fmt::format("att_{}_{}_{}_{}_{}_{}", family->symbol_name,
                              plan.pass == Pass::kForward ? "fwd" : "bwd", to_string(spec.dtype),
                              dims, family->symbol_part(plan), hash);
  for (Launch& launch : recipe.launches) {
    launch.symbol = recipe.symbol + launch.symbol;
    if (!launch.otherwise.empty()) launch.otherwise = recipe.symbol + launch.otherwise;
  }
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Pass pass, Target target) {
  std::vector<WorkspaceRegion> widest = pre_pass_regions(spec);
  if (is_packed(spec)) {
    const int least = least_item_rows(target);
    widest.push_back({.content = WorkspaceRegion::Content::kSequenceItems, .length_unit = least});
    if (pass == Pass::kBackward) {
      widest.push_back({.content = WorkspaceRegion::Content::kKeyItems, .length_unit = least});
    }
  }
  for (const FamilyAccessor accessor : family_table()) {
    const FamilyOperations& family = accessor();
    if (family.pass != pass || !serves(family, spec, target).ok()) continue;
    for (const WorkspaceRegion& region : family.widest_workspace(spec, target)) {
      if (!covers(widest, {&region, 1})) widest.push_back(region);
    }
  }
  return widest;
}

}  // namespace attune
