// What a check of gradients is handed over by a test of any device.
#pragma once

#include <span>

#include "runtime/device/device.hpp"
#include "runtime/reference/tolerance.hpp"

namespace attune::verification {

struct BackwardKernels {
  Device& device;
  const AttentionSpec& spec;
  const LoadedKernel& forward;  // makes the O and LSE that come in
  std::span<const LoadedKernel* const> backward;
  Arithmetic arithmetic;
};

}  // namespace attune::verification
