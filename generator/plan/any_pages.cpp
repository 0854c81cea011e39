#include "generator/plan/any_pages.hpp"

#include <utility>
#include <variant>

#include "templates/page_table.h"

namespace attune {
namespace {

// Tiles are multiples of that.
bool have_boxes(int page_size) { return page_size % att::kLeastPageBoxRows == 0; }

// The plan that brings rows the other way: nothing if it has no boxes of pages, or copies rows as
// it is asked to already, or does not fit so.
std::optional<KernelPlan> twin(const AttentionSpec& spec, const KernelPlan& plan, bool copies_rows,
                               const DeviceFacts& device) {
  const auto* const given = std::get_if<Sm90aPlan>(&plan.tile);
  if (given == nullptr || !is_paged(spec) || given->copies_rows == copies_rows) return std::nullopt;
  Sm90aPlan tile = *given;
  tile.copies_rows = copies_rows;
  KernelPlan other = plan;
  other.tile = tile;
  if (!check_plan(spec, other, device).ok()) return std::nullopt;
  return other;
}

}  // namespace

std::optional<KernelPlan> plan_for_any_pages(const AttentionSpec& spec, const KernelPlan& plan,
                                             const DeviceFacts& device) {
  return twin(spec, plan, true, device);
}

KernelPlan plan_for_boxes(const AttentionSpec& spec, const KernelPlan& plan,
                          const DeviceFacts& device) {
  return twin(spec, plan, false, device).value_or(plan);
}

KernelPlan plan_for_pages(const AttentionSpec& spec, int page_size, const KernelPlan& plan,
                          const DeviceFacts& device) {
  return twin(spec, plan, !have_boxes(page_size), device).value_or(plan);
}

std::vector<KernelPlan> plans_for_pages(const AttentionSpec& spec, int page_size,
                                        std::vector<KernelPlan> plans, const DeviceFacts& device) {
  if (!is_paged(spec) || have_boxes(page_size)) return plans;
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
