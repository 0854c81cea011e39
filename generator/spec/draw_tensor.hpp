// Values for a tensor that nobody brought.
#pragma once

#include <random>

#include "generator/expr/evaluator.hpp"
#include "generator/spec/sample.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

// What `sample` says, row-major over the sizes that the tensor has at `shape`; reals are not
// rounded to the tensor's type. Said by nobody: int32 along a sequence are ascending numbers of
// segments, four a row on average, as of documents; any other int32 a length, from 0 to kv_len;
// reals are normal, halved, as biases and slopes are; three in four bools are true. A given tensor
// of other sizes is cut off, or repeated, in each dim. The same generator's state gives the same
// values.
expr::TensorValues draw_tensor(const expr::TensorDecl& tensor, const Sample& sample,
                               const ProblemShape& shape, std::mt19937_64& random);

}  // namespace attune
