// What tells the sm90a family's plans apart, and their words; family.hpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune::sm90a {

std::vector<int> choices(const KernelPlan& plan);
std::string tile_text(const KernelPlan& plan);
Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan);
std::string symbol_part(const KernelPlan& plan);

// An order of items, as the kernel's enum names it.
std::string_view schedule_constant(Sm90aPlan::Schedule schedule);

}  // namespace attune::sm90a
