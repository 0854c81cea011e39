#include "generator/plan/any_pages.hpp"

#include <utility>
#include <variant>

#include "templates/page_table.h"

namespace attune {
namespace {

// Tiles are multiples of that.
bool have_boxes(int page_size) { return page_size % att::kLeastPageBoxRows == 0; }

// A box takes the tensor unit the longer the fewer its rows are. Of head dims up to 64 it is half
// as long, and rows have half as much to copy for an address. Beside a score copies take what its
// arithmetic needs: a softcap, d 128, an H200 505 us with V by rows, and 491.
constexpr int kSmallBoxRows = 16, kMostDimOfBoxes = 64, kMostDimOfScores = 128;

CopiedRows rows_to_copy(const AttentionSpec& spec, const KernelPlan& plan, int page_size) {
  if (!have_boxes(page_size)) return CopiedRows::kAll;
  const int most_dim = spec.score ? kMostDimOfScores : kMostDimOfBoxes;
  return spec.head_dim_v > most_dim && has_small_boxes(plan, page_size) ? CopiedRows::kValues
                                                                        : CopiedRows::kNone;
}

// The plan that brings rows another way: nothing if it has no boxes of pages, or copies rows as
// it is asked to already, or does not fit so.
std::optional<KernelPlan> twin(const AttentionSpec& spec, const KernelPlan& plan, CopiedRows rows,
                               const DeviceFacts& device) {
  const auto* const given = std::get_if<Sm90aPlan>(&plan.tile);
  if (given == nullptr || !is_paged(spec) || given->copied_rows == rows) return std::nullopt;
  Sm90aPlan tile = *given;
  tile.copied_rows = rows;
  KernelPlan other = plan;
  other.tile = tile;
  if (!check_plan(spec, other, device).ok()) return std::nullopt;
  return other;
}

}  // namespace

std::optional<KernelPlan> plan_for_any_pages(const AttentionSpec& spec, const KernelPlan& plan,
                                             const DeviceFacts& device) {
  return twin(spec, plan, CopiedRows::kAll, device);
}

bool has_small_boxes(const KernelPlan& plan, int page_size) {
  const auto* const tile = std::get_if<Sm90aPlan>(&plan.tile);
  return tile != nullptr && att::page_box_rows(page_size, tile->tile_kv) == kSmallBoxRows;
}

std::optional<KernelPlan> plan_for_small_boxes(const AttentionSpec& spec, const KernelPlan& plan,
                                               const DeviceFacts& device) {
  if (rows_to_copy(spec, plan, kSmallBoxRows) != CopiedRows::kValues) return std::nullopt;
  return twin(spec, plan, CopiedRows::kValues, device);
}

KernelPlan plan_for_boxes(const AttentionSpec& spec, const KernelPlan& plan,
                          const DeviceFacts& device) {
  return twin(spec, plan, CopiedRows::kNone, device).value_or(plan);
}

KernelPlan plan_for_pages(const AttentionSpec& spec, int page_size, const KernelPlan& plan,
                          const DeviceFacts& device) {
  return twin(spec, plan, rows_to_copy(spec, plan, page_size), device).value_or(plan);
}

std::vector<KernelPlan> plans_for_pages(const AttentionSpec& spec, int page_size,
                                        std::vector<KernelPlan> plans, const DeviceFacts& device) {
  if (!is_paged(spec)) return plans;
  const auto cannot_be_read = [&](const KernelPlan& plan) {
    const auto* const sm90a = std::get_if<Sm90aPlan>(&plan.tile);
    return sm90a != nullptr && sm90a->copied_rows != CopiedRows::kAll && !have_boxes(page_size);
  };
  for (KernelPlan& plan : plans) plan = plan_for_pages(spec, page_size, plan, device);
  std::erase_if(plans, cannot_be_read);
  return plans;
}

}  // namespace attune
