// What the fake worker's candidates do, by their plan.
#pragma once

#include <string>

#include "generator/plan/plan.hpp"

namespace attune::tuner_testing {

// "compile-error", "compile-crash", "compile-hang", "hang", "crash", "fault", "miscompute",
// "late-crash" (verified, then dead in a race), or empty for a candidate that works.
inline std::string planted(const KernelPlan& plan) {
  const auto& p = std::get<Sm80Plan>(plan.tile);
  if (p.tile_q == 16) return "compile-error";
  if (p.tile_q == 32) return "compile-crash";
  if (p.tile_q == 48) return "hang";
  if (p.tile_q == 64) return "crash";
  if (p.tile_q == 80) return "fault";
  if (p.tile_q == 96) return "miscompute";
  if (p.tile_q == 208) return "compile-hang";
  if (p.tile_q == 224) return "late-crash";
  return "";
}
inline double planted_time_us(const KernelPlan& plan) {
  return std::get<Sm80Plan>(plan.tile).tile_q;
}

}  // namespace attune::tuner_testing
