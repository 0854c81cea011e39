// CUDA C++ to machine code by NVRTC, which is opened at run time.
#pragma once

#include <string>

namespace train {

// A cubin for `target` ("sm_90"). NVRTC is ATTUNE_NVRTC's, or where CUDA's libraries are. Throws
// Error: there is no NVRTC, or it refuses the text; then its log is in the message.
std::string compile_cuda(const std::string& source, const std::string& target);

}  // namespace train
