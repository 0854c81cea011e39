// Kernels that take sequences apart into residues, and the launches that callers make.
#pragma once

#include <memory>

#include "runtime/device/device.hpp"

namespace attune {

// A kernel that is launched on whole sequences; `kernel` is of residue_spec() and gets as many
// residues of them as the batch. What the lengths do not allow is kUnsupported, id
// kStridesUnsupported: another plan of the spec can.
std::unique_ptr<LoadedKernel> launched_whole(std::unique_ptr<LoadedKernel> kernel, int residues);

}  // namespace attune
