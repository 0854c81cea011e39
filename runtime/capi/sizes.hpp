// att_shape -> ProblemShape, and what one launch can be as a whole.
#pragma once

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"

namespace attune {

// No tensor is larger than an address space.
constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 47;
constexpr std::int64_t kMaxPages = std::int64_t{1} << 28;  // and rows of one

struct LaunchSizes {
  ProblemShape shape;     // a zero of an empty batch counts as one
  bool is_empty = false;  // there is nothing to compute
};

ProblemShape problem_shape(const att_shape& shape);  // as it stands

// kBadInput unless every size is within the bounds of kShapeFields (which the masks' interval
// analysis relies on), and heads is a multiple of kv_heads. Fills `sizes` in its place: every copy
// of what was just stored would cost a look-up of a kernel nanoseconds. What `sizes` holds after an
// error is unspecified. Allocates only when it fails.
Status check_shape(const att_shape& shape, LaunchSizes* sizes);

// Also that o fits an address space; LSE is then smaller.
Status check_sizes(const AttentionSpec& spec, const att_shape& shape, LaunchSizes* sizes);

[[gnu::cold]] Error bad_argument(std::string message, std::string hint = {});

}  // namespace attune
