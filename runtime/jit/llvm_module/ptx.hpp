// The GPU half of the frontend: what an optimised module needs before it becomes PTX.
#pragma once

namespace llvm {
class Module;
}

namespace attune::llvm_module {

// The attribute of functions that says in which order their instructions are.
inline constexpr const char* kOrder = "attune-order";
inline constexpr const char* kLate = "late";          // each right before what needs its value
inline constexpr const char* kParallel = "parallel";  // listed, for parallelism
inline constexpr const char* kNarrow = "narrow";      // listed, for few registers

// `listed`: LLVM's list schedulers order the instructions.
void prepare_for_ptx(llvm::Module& module, bool listed);

}  // namespace attune::llvm_module
