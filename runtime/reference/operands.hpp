// The operands of a matrix unit's products. `precision: tf32` says that they are rounded, each of
// them once, and so does the definition that its kernels are judged by: what is rounded once a row
// errs in all of the row's terms alike, and no sum over them averages it out.
#pragma once

#include "generator/spec/spec.hpp"
#include "runtime/reference/backward.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/reference/tolerance.hpp"

namespace attune {

// Whether Q, K, V and dO are rounded to tf32 before they are multiplied.
bool rounds_operands(const AttentionSpec& spec, Arithmetic arithmetic);

// The nearest tf32 of an fp32 value, of two the larger in size. Infinities and NaNs stay.
double round_to_tf32(double value);

// With what products are made of in place of the inputs.
HostProblem with_tf32_operands(HostProblem problem);
OutputGradients with_tf32_operands(OutputGradients gradients);

}  // namespace attune
