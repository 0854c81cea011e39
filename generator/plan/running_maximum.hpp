// Specs whose exponentials take each row's running maximum as their reference, and nothing else.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

// `accuracy: strict`, and scores that are a product with a constant of 2^20 and more, beside the
// usual softmax scale: what a constant or a first tile says of these is so far off that every item
// would be done again (`score * 2^24`, d 128 and 16, causal, 8192 tokens, H200: 2110 us, by running
// maxima 660).
bool takes_running_maximum_alone(const AttentionSpec& spec);

// Of a plan with another reference: that the spec has none.
Status check_reference(const AttentionSpec& spec, bool frozen_max);

}  // namespace attune
