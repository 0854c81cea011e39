// att_shape -> ProblemShape, and what one launch can be as a whole.
#pragma once

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"

namespace attune {

// No tensor is larger than an address space.
constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 47;

struct LaunchSizes {
  ProblemShape shape;     // a zero of an empty batch counts as one
  bool is_empty = false;  // there is nothing to compute
};

ProblemShape problem_shape(const att_shape& shape);  // as it stands

// kBadInput unless every size is within the bounds of shape_fields() (which the masks' interval
// analysis relies on), and heads is a multiple of kv_heads.
Result<LaunchSizes> checked_shape(const att_shape& shape);

// Also that o fits an address space; LSE is then smaller. Allocates only when it fails.
Result<LaunchSizes> checked_sizes(const AttentionSpec& spec, const att_shape& shape);

Error bad_argument(std::string message, std::string hint = {});

}  // namespace attune
