// The GPU half of the frontend: an optimised module -> PTX.
#pragma once

#include <clang/Frontend/CompilerInstance.h>
#include <llvm/IR/Module.h>

#include <string>

namespace attune::llvm_module {

// The attribute of functions that says in which order their instructions are.
inline constexpr const char* kOrder = "attune-order";
inline constexpr const char* kLate = "late";          // each right before what needs its value
inline constexpr const char* kParallel = "parallel";  // listed, for parallelism
inline constexpr const char* kNarrow = "narrow";      // listed, for few registers

// `listed`: LLVM's list schedulers order the instructions. False on failure; LLVM's words are added
// to `log`.
bool emit_ptx(clang::CompilerInstance& instance, llvm::Module& module, bool listed,
              std::string& ptx, std::string& log);

}  // namespace attune::llvm_module
