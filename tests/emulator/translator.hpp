// Generated CUDA source, preprocessed, as C++ for the CPU: each inline PTX statement becomes calls
// of functions of the same names (operations.hpp), kernels and shared memory become the machine's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attune::emulator {

// `preprocessed` is what a C++ preprocessor leaves of a kernel's source, with __shared__,
// __global__ and __launch_bounds__ still in it. Throws std::runtime_error of what it does not know.
struct Translation {
  std::string text;
  std::vector<std::string> kernels;  // their names
};
Translation translate(std::string_view preprocessed);

}  // namespace attune::emulator
