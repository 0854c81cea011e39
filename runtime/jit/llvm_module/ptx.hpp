// The GPU half of the frontend: an optimised module -> PTX.
#pragma once

#include <clang/Frontend/CompilerInstance.h>
#include <llvm/IR/Module.h>

#include <string>

namespace attune::llvm_module {

// The attribute of functions whose instructions stand as late as they may.
inline constexpr const char* kLateInstructions = "attune-late";

// False on failure; LLVM's words are added to `log`.
bool emit_ptx(clang::CompilerInstance& instance, llvm::Module& module, std::string& ptx,
              std::string& log);

}  // namespace attune::llvm_module
