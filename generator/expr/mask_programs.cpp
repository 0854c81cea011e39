#include "generator/expr/mask_programs.hpp"

#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/solver.hpp"

namespace attune::expr {
namespace {

std::shared_ptr<const MaskProgram> bounds_program(const Expr& mask, Variable unknown) {
  auto made = std::make_shared<MaskProgram>();
  Lowering lowering(made->program);
  const PositionBounds bounds = Solver(lowering, unknown).solve(mask);
  made->results = {bounds.begin, bounds.end};
  if (made->program.steps().size() > kMostSteps) {
    *made = {};
    const Variable length = unknown == Variable::kKvIdx ? Variable::kKvLen : Variable::kQLen;
    made->results = {made->program.integer(0), made->program.uniform(make_variable(length))};
  }
  return made;
}

}  // namespace

std::shared_ptr<const MaskProgram> classify_program(const Expr& mask) {
  auto made = std::make_shared<MaskProgram>();
  const Truth truth = Lowering(made->program).truth(mask);
  made->results = {truth.must, truth.may};
  if (made->program.steps().size() > kMostSteps) {
    *made = {};
    made->results = {made->program.boolean(false), made->program.boolean(true)};
  }
  return made;
}

std::shared_ptr<const MaskProgram> kv_bounds_program(const Expr& mask) {
  return bounds_program(mask, Variable::kKvIdx);
}

std::shared_ptr<const MaskProgram> q_bounds_program(const Expr& mask) {
  return bounds_program(mask, Variable::kQIdx);
}

std::shared_ptr<const MaskProgram> row_bounds_program(const Expr& mask) {
  auto made = std::make_shared<MaskProgram>();
  Lowering lowering(made->program, /*q_is_point=*/true);
  Solver solver(lowering, Variable::kKvIdx);
  const PositionBounds bounds = solver.solve(mask);
  if (!solver.exact() || made->program.steps().size() > kMostSteps) return nullptr;
  made->results = {bounds.begin, bounds.end};
  return made;
}

}  // namespace attune::expr
