// A host's launch -> a copy of all that it reads, which a worker can open.
#pragma once

#include <memory>

#include "runtime/device/device.hpp"
#include "tuner/measure/given_launch.hpp"

namespace attune {

// `params` as fill_forward_params() or fill_backward_params() made them of `shape`, their pointers
// the device's. Waits until all work of the device's context is done, then copies; nothing of
// `params` is used afterwards, and o, lse, the workspace and gradients not at all. kBadInput where
// packed offsets or lengths are none. Allocates main memory: the copy, and a slice of a matrix.
Result<std::unique_ptr<GivenLaunch>> copy_launch(Device& device, const AttentionSpec& spec,
                                                 const ProblemShape& shape, Pass pass,
                                                 const att::LaunchParams& params);

}  // namespace attune
