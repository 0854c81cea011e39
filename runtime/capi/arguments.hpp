// The arguments of a launch -> its parameters, with everything checked that a kernel would trip
// over. kBadInput names the argument that is wrong. Allocates only when it fails.
#pragma once

#include <cstddef>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"
#include "templates/params.h"

namespace attune {

int tensor_dtype(expr::TensorType type);  // att_dtype

// kBadInput unless `view` is what the declaration says, contiguous, with `sizes`; its data is not
// looked at.
Status check_view(const expr::TensorDecl& declared, const std::int64_t* sizes,
                  const att_tensor& view);

// kBadInput where the arguments say that their workspace has fewer than `needed` bytes. With none
// needed its pointer becomes null: no bytes may have the address of what was allocated next.
template <typename Args>
Status check_workspace(std::size_t needed, Args* args);

// kBadInput where gradients of another number of tensors are asked for than the spec has.
Status check_gradient_count(const AttentionSpec& spec, const att_backward_args& args);

// `shape` is that of `args`, checked and not empty.
Status fill_forward_params(const AttentionSpec& spec, const att_forward_args& args,
                           const ProblemShape& shape, att::LaunchParams* params);
Status fill_backward_params(const AttentionSpec& spec, const att_backward_args& args,
                            const ProblemShape& shape, att::LaunchParams* params);

}  // namespace attune
