#include "generator/plan/learned_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/expr/derivative.hpp"
#include "generator/expr/look_up_pattern.hpp"
#include "generator/plan/family.hpp"

namespace attune {
namespace {

// As in templates/tile/learned_sums.cuh and learned_totals.cuh.
constexpr int kKeysOfSums = 16;
constexpr int kMostBinsInRegisters = 64;
constexpr int kTotalThreads = 1024;
// 16 KB for 16 keys of a head, as much as K, V and their gradients take in bf16 at head dim 128.
constexpr int kMostOrderedBins = 4096;

using LookUps = std::vector<expr::LookUpDerivative>;

LookUps of_score(const AttentionSpec& spec) {
  return expr::look_up_derivatives(spec.score, spec.environment);
}
LookUps of_sink(const AttentionSpec& spec) {
  return expr::look_up_derivatives(spec.sink, spec.environment);
}

bool has_sums(const AttentionSpec& spec, int bins) {
  return bins > 0 && (bins <= kMostBinsInRegisters || spec.deterministic);
}

int learned_columns(const AttentionSpec& spec) {
  int columns = 0;
  for (const expr::LookUpDerivative& d : of_score(spec)) {
    const int bins = expr::look_up_pattern(d.look_up, spec.environment).bins;
    if (has_sums(spec, bins)) columns += bins;
  }
  return columns;
}

bool has_last_launch(const AttentionSpec& spec) {
  return learned_columns(spec) > 0 || (spec.deterministic && spec.sink != nullptr);
}

Error unordered(const AttentionSpec& spec, int slot, std::string_view why) {
  return plan_unsupported(
      fmt::format("the gradient of `{}` is added up in the order in which blocks come to it, which "
                  "`deterministic: true` rules out: {}",
                  spec.environment.tensors[static_cast<std::size_t>(slot)].name, why),
      "without `grad: true`, or without `deterministic: true`, there are plans");
}

}  // namespace

LoopedItems looped_items(const AttentionSpec& spec) {
  LoopedItems items;
  if (!spec.deterministic) return items;
  for (const expr::LookUpDerivative& d : of_score(spec)) {
    const expr::LookUpPattern pattern = expr::look_up_pattern(d.look_up, spec.environment);
    if (pattern.bins > 0) continue;
    items.batches |= !pattern.own_by_batch;
    items.heads |= !pattern.own_by_head;
  }
  return items;
}

Status learns_in_order(const AttentionSpec& spec, bool has_looped_items) {
  if (!spec.deterministic) return ok_status();
  const LookUps look_ups = of_score(spec), in_sink = of_sink(spec);
  for (const expr::LookUpDerivative& d : look_ups) {
    const int slot = d.look_up->slot;
    const expr::LookUpPattern pattern = expr::look_up_pattern(d.look_up, spec.environment);
    if (pattern.bins > kMostOrderedBins) {
      return unordered(spec, slot,
                       fmt::format("a head has {} elements of it, and at most {} are added up in "
                                   "order",
                                   pattern.bins, kMostOrderedBins));
    }
    if (pattern.bins > 0) continue;
    const auto is_of_tensor = [&](const expr::LookUpDerivative& other) {
      return other.look_up->slot == slot;
    };
    const bool is_alone = std::ranges::count_if(look_ups, is_of_tensor) == 1 &&
                          std::ranges::none_of(in_sink, is_of_tensor);
    if (!is_alone || !pattern.own_by_pair) {
      return unordered(spec, slot,
                       "how many elements a head has depends on a length, and several pairs of "
                       "query and key may share one; each has its own where the tensor is looked "
                       "up once, by [q_idx, kv_idx] among others");
    }
    if (!pattern.is_exclusive() && !has_looped_items) {
      return unordered(spec, slot, "several batches or heads share an element");
    }
  }
  return ok_status();
}

std::vector<WorkspaceRegion> with_learned(const AttentionSpec& spec,
                                          std::vector<WorkspaceRegion> regions) {
  if (const int columns = learned_columns(spec); columns > 0) {
    regions.push_back({.content = WorkspaceRegion::Content::kLearnedSums,
                       .length_unit = kKeysOfSums,
                       .columns = columns});
  }
  return regions;
}

void add_learned(const AttentionSpec& spec, LaunchRecipe& recipe) {
  if (!has_last_launch(spec)) return;
  recipe.workspace = with_learned(spec, std::move(recipe.workspace));
  recipe.launches.push_back(
      {.symbol = "_learned", .threads = kTotalThreads, .item = WorkItem::kKvHead});
}

std::string learned_constants(const AttentionSpec& spec) {
  return fmt::format(
      "constexpr bool kOrderedSums = {};  // no gradient is added up in the order of arrival\n"
      "#define ATT_LEARNS {:d}\n",
      spec.deterministic, has_last_launch(spec));
}

}  // namespace attune
