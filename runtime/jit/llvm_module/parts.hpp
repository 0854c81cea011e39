// What the files of the LLVM module share. None of this leaves the module.
#pragma once

#include <string>
#include <vector>

#include "runtime/jit/llvm_module/api.h"

namespace attune::llvm_module {

// Source -> object or assembly text, in memory. False on failure; `log` holds the diagnostics.
bool compile_source(const AttLlvmCompileRequest& request, std::string& image, std::string& log);

// An object that ORC linked into this process.
void* load_object(const void* object, std::size_t size, const char* const* symbols,
                  void** addresses, std::size_t symbol_count, std::string& log);
void unload_object(void* handle);

// LLVM gives up on what it takes for an internal error by ending the process. While a guard lives
// on this thread the message is thrown as a FatalError instead; a later call still works, though
// what the failed one held is lost.
struct FatalError {
  std::string message;
};
class FatalErrorGuard {
 public:
  FatalErrorGuard();
  ~FatalErrorGuard();
  FatalErrorGuard(const FatalErrorGuard&) = delete;
  FatalErrorGuard& operator=(const FatalErrorGuard&) = delete;
};

}  // namespace attune::llvm_module
