// Which of the plans that were timed are worth a look under other conditions.
#pragma once

#include <span>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune {

struct TimedPlan {
  double us = 0;
  KernelPlan plan;
};

// Of plans in the order of their times, the fastest; and before those the best of every kind (of a
// family, of a number of warps, of an order of items, of how pieces are merged) that is not much
// slower: plans of one kind gain and lose together where the conditions are others, and what is
// sixteen times the same kind says nothing about the next.
std::vector<KernelPlan> diverse_plans(std::span<const TimedPlan> by_time);

}  // namespace attune
