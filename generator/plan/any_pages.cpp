#include "generator/plan/any_pages.hpp"

#include <utility>
#include <variant>

#include "templates/page_table.h"

namespace attune {

std::optional<KernelPlan> plan_for_any_pages(const AttentionSpec& spec, const KernelPlan& plan,
                                             const DeviceFacts& device) {
  const auto* const by_boxes = std::get_if<Sm90aPlan>(&plan.tile);
  if (by_boxes == nullptr || !is_paged(spec) || by_boxes->copies_rows) return std::nullopt;
  Sm90aPlan tile = *by_boxes;
  tile.copies_rows = true;
  KernelPlan by_rows = plan;
  by_rows.tile = tile;
  if (!check_plan(spec, by_rows, device).ok()) return std::nullopt;
  return by_rows;
}

std::vector<KernelPlan> plans_for_pages(const AttentionSpec& spec, int page_size,
                                        std::vector<KernelPlan> plans, const DeviceFacts& device) {
  // Tiles are multiples of that.
  if (!is_paged(spec) || page_size % att::kLeastPageBoxRows == 0) return plans;
  std::vector<KernelPlan> found;
  for (KernelPlan& plan : plans) {
    const auto* const sm90a = std::get_if<Sm90aPlan>(&plan.tile);
    if (sm90a == nullptr || sm90a->copies_rows) {
      found.push_back(std::move(plan));
    } else if (const auto by_rows = plan_for_any_pages(spec, plan, device)) {
      found.push_back(*by_rows);
    }
  }
  return found;
}

}  // namespace attune
