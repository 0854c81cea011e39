#include "generator/plan/any_pages.hpp"

#include <variant>

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

}  // namespace attune
