// How alike two plans are.
#pragma once

#include "generator/plan/plan.hpp"

namespace attune {

// In how many of their choices two plans of one family and pass differ; INT_MAX across these.
int plan_distance(const KernelPlan& a, const KernelPlan& b);

}  // namespace attune
