// Tensors that a user brings in files, for problems that are made up otherwise.
#pragma once

#include <span>
#include <string>

#include "generator/expr/evaluator.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

// An array that numpy.save() wrote: in C order, of at most 2^28 elements; integers for int32, whose
// range they must keep, floats for reals, bool or uint8 for bool. "tensor-file" (kBadInput).
Result<expr::TensorValues> read_npy(const std::string& path, expr::TensorType type);

// Makes "name=path" of each of `files` the sample of the tensor of that name. "tensor-file",
// "tensor-unknown" and "tensor-size" where the number of dims differs.
Status give_tensors(std::span<const std::string> files, AttentionSpec& spec);

// "tensor-size" where a given tensor is not of the sizes that it has at `shape`.
Status check_given(const AttentionSpec& spec, const ProblemShape& shape);

}  // namespace attune
