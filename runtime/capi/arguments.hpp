// att_forward_args -> ForwardParams, with everything checked that a kernel would trip over.
#pragma once

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"
#include "templates/params.h"

namespace attune {

// kBadInput unless every size is within the bounds of shape_fields() (which the masks' interval
// analysis relies on), and heads is a multiple of kv_heads.
Result<ProblemShape> checked_shape(const att_shape& shape);

// Fills `params`; kBadInput names the argument that is wrong. Allocates only when it fails.
Status fill_forward_params(const AttentionSpec& spec, const att_forward_args& args,
                           att::ForwardParams* params);

}  // namespace attune
