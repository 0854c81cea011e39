// Finds and opens the LLVM module for the compiler and for the CPU device.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/support/result.hpp"
#include "runtime/jit/llvm_module/api.h"

namespace attune {

// The module's table; valid as long as the process lives. Looked for in $ATTUNE_LLVM_MODULE (a
// path, and then nowhere else), beside the code that asks, beside the executable, in a `lib`
// directory above it (a build tree, an unpacked archive), in the loader's path, and where Attune
// installs libraries by default. kUnavailable, naming what to install, when it is not there
// ("llvm-missing") or of another version
// ("llvm-module-version"). Thread-safe; a failure is not remembered.
Result<const AttLlvmApi*> open_llvm_module();

// "clang 19.1.7 (1f0c9a2b)": the version, and a hash of all else that decides what code a module
// makes of a source: its own revision and the arguments that it gets for each target.
std::string llvm_identity(const AttLlvmApi& api,
                          std::span<const std::vector<std::string>> arguments,
                          std::string_view family = "clang");

}  // namespace attune
