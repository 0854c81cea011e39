// The whole model's gradients against finite differences.
#pragma once

#include <cstdint>
#include <string>

#include "dense.hpp"
#include "text.hpp"

namespace train {

// Two checks on a small batch, printed a line each parameter:
//   reference   the model in fp64 with the reference's attention, against central differences of
//               its loss along random directions, on the CPU;
//   attune      the model in fp32 on `device` with Attune's kernels of `spec_file`, against that
//               fp64 model.
// True when both hold for every parameter. Throws Error where there is nothing to run it on.
bool check_gradients(const Corpus& corpus, const std::string& device, Products products,
                     const std::string& spec_file, std::uint64_t seed);

}  // namespace train
