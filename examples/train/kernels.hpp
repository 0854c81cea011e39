// The text of kernels.cu, which the build puts into the executable.
#pragma once

namespace train {

extern const char* const kKernels;

}  // namespace train
