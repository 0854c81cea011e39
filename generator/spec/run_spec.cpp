#include "generator/spec/run_spec.hpp"

#include <algorithm>

#include "generator/expr/intervals.hpp"
#include "templates/params.h"

namespace attune {

bool has_runs(const AttentionSpec& spec) {
  if (is_packed(spec) || spec.batch_invariant || spec.residues > 1 || spec.runs) return false;
  if (spec.environment.tensors.size() + 2 > att::kMaxTensors) return false;
  const auto form = expr::run_form(spec.mask);
  // The pre-pass is that of the mask without runs, which a mask may be too long to have.
  return form && std::ranges::count(expr::range_slots(spec.mask), form->slot()) > 0;
}

AttentionSpec run_spec(const AttentionSpec& spec, expr::RunsOf whose) {
  AttentionSpec told = spec;
  const auto form = expr::run_form(spec.mask);
  if (!form) return told;
  auto& tensors = told.environment.tensors;
  const int numbers = form->slot(), begin = static_cast<int>(tensors.size());
  // No name of a file has a dot.
  expr::TensorDecl positions = tensors[static_cast<std::size_t>(numbers)];
  const std::string name = positions.name;
  for (const char* const end : {".begin", ".end"}) {
    positions.name = name + end;
    tensors.push_back(positions);
  }
  const expr::RunTensors of_runs = {.begin = begin, .end = begin + 1};
  const expr::MaskByRuns made = expr::mask_by_runs(*form, of_runs, whose);
  told.runs = Runs{
      .numbers = numbers, .tensors = of_runs, .is_told = made.is_told, .by_runs = made.by_runs};
  return told;
}

}  // namespace attune
