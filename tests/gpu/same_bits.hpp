// Whether a backward kernel makes the same bits at every launch, whatever runs beside it.
#pragma once

#include <span>

#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {

// So many launches of `backward`, each behind the other's back: a shape has a stream and buffers of
// its own, and streams take turns. How many of them gave other gradients than the first launch on
// their shape, of all of them and on any stream. `forward` makes the O and LSE that come in.
Result<int> different_launches(const AttentionSpec& spec, const LoadedKernel& forward,
                               const LoadedKernel& backward, std::span<const ProblemShape> shapes,
                               int launches);

}  // namespace attune::gpu_test
