#include "generator/expr/intervals.hpp"

#include <set>

#include "generator/expr/lowering.hpp"
#include "generator/expr/mask_programs.hpp"

namespace attune::expr {

TileClass classify(const Expr& mask, const TileBox& box) { return TileClassifier(mask)(box); }

KvBounds kv_bounds(const Expr& mask, const TileBox& queries) {
  return KvBoundsSolver(mask)(queries);
}

TileClassifier::TileClassifier(const Expr& mask) : program_(classify_program(mask)) {}

TileClass TileClassifier::operator()(const TileBox& box) const {
  const auto values = run(program_->program, box);
  const auto holds = [&](StepId id) { return values[static_cast<std::size_t>(id)].integer != 0; };
  if (!holds(program_->results[1])) return TileClass::kSkip;
  return holds(program_->results[0]) ? TileClass::kFull : TileClass::kPartial;
}

KvBoundsSolver::KvBoundsSolver(const Expr& mask) : program_(kv_bounds_program(mask)) {}

KvBounds KvBoundsSolver::operator()(const TileBox& queries) const {
  const auto values = run(program_->program, queries);
  const auto value = [&](std::size_t i) {
    return static_cast<std::int32_t>(
        values[static_cast<std::size_t>(program_->results[i])].integer);
  };
  return {value(0), value(1)};
}

namespace {

std::vector<int> ranged_slots(const Expr& mask, bool by_blocks_only) {
  std::set<int> slots;
  if (mask && contains_load(mask)) {
    for (const auto& made : {classify_program(mask), kv_bounds_program(mask)})
      for (const Step& step : made->program.steps())
        if (step.op == StepOp::kTensorRange && (step.value != 0 || !by_blocks_only))
          slots.insert(step.slot);
  }
  return {slots.begin(), slots.end()};
}

}  // namespace

// The programs are dear where a mask is long, and each plan of a spec asks.
std::vector<int> range_slots(const Expr& mask) {
  thread_local Expr last;  // held, so that no other mask has its address
  thread_local std::vector<int> slots;
  if (mask != last) {
    slots = ranged_slots(mask, true);
    last = mask;
  }
  return slots;
}
std::vector<int> telling_slots(const Expr& mask) { return ranged_slots(mask, false); }

}  // namespace attune::expr
