#include "generator/expr/live_tiles.hpp"

#include <algorithm>

#include "generator/expr/mask_programs.hpp"

namespace attune::expr {
namespace {

// Boxes that are asked about as one first: an edge crosses few of these, and where one neither
// skips nor fills a group it cost an eighth more.
constexpr std::size_t kGroup = 8;

enum Reach : std::uint8_t { kUnused, kLaunch, kRow, kColumn };

Reach own_reach(const Step& step) {
  switch (step.op) {
    case StepOp::kQFirst:
    case StepOp::kQLast:
      return kRow;
    case StepOp::kKvFirst:
    case StepOp::kKvLast:
      return kColumn;
    default:
      return kLaunch;
  }
}

}  // namespace

LiveTileCounter::LiveTileCounter(const Expr& mask) : program_(classify_program(mask)) {
  const std::vector<Step>& steps = program_->program.steps();
  std::vector<bool> needed(steps.size());
  for (const StepId result : program_->results) needed[static_cast<std::size_t>(result)] = true;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const StepId arg : steps[i].args) needed[static_cast<std::size_t>(arg)] = true;
  }
  std::vector<Reach> reaches(steps.size(), kUnused);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!needed[i]) continue;
    reaches[i] = own_reach(steps[i]);
    for (const StepId arg : steps[i].args)
      reaches[i] = std::max(reaches[i], reaches[static_cast<std::size_t>(arg)]);
    auto& list = reaches[i] == kLaunch ? of_launch_ : reaches[i] == kRow ? of_row_ : of_column_;
    list.push_back(static_cast<StepId>(i));
  }
}

std::vector<TileCounts> LiveTileCounter::operator()(TileBox box, std::span<const Positions> rows,
                                                    std::span<const Positions> columns) const {
  const IntervalProgram& program = program_->program;
  std::vector<StepValue> values(program.steps().size());
  const auto run_steps = [&](const std::vector<StepId>& steps) {
    for (const StepId id : steps)
      values[static_cast<std::size_t>(id)] = value_of(program[id], box, values);
  };
  const auto holds = [&](std::size_t result) {
    return values[static_cast<std::size_t>(program_->results[result])].integer != 0;
  };
  const auto look_at = [&](const Positions& first, const Positions& last) {
    box.k0 = first.begin;
    box.k1 = last.end;
    run_steps(of_column_);
  };
  run_steps(of_launch_);
  std::vector<TileCounts> counts;
  counts.reserve(rows.size());
  for (const Positions& row : rows) {
    box.q0 = row.begin;
    box.q1 = row.end;
    run_steps(of_row_);
    TileCounts count;
    for (std::size_t begin = 0; begin < columns.size(); begin += kGroup) {
      const auto group = columns.subspan(begin, std::min(kGroup, columns.size() - begin));
      look_at(group.front(), group.back());
      if (!holds(1)) continue;
      if (holds(0)) {
        count.live += static_cast<int>(group.size());
        count.full += static_cast<int>(group.size());
        continue;
      }
      for (const Positions& column : group) {
        look_at(column, column);
        count.live += holds(1) ? 1 : 0;
        count.full += holds(1) && holds(0) ? 1 : 0;
      }
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace attune::expr
