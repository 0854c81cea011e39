// The spec that plans are tried on where the mask and the score do not matter.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

inline AttentionSpec plain_spec(int head_dim = 128) {
  AttentionSpec spec;
  spec.name = "plain";
  spec.head_dim_qk = spec.head_dim_v = head_dim;
  spec.softmax_scale.value = 0.125;
  return spec;
}

}  // namespace attune
