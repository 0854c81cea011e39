// Cheap arithmetic near its uses, for the sake of registers.
#pragma once

#include <llvm/IR/Function.h>

namespace attune::llvm_module {

// Repeats cheap integer arithmetic in the loops that use it, and keeps the back end from taking it
// out of them again, in all functions of the context.
void compute_near_uses(llvm::Function& function);

}  // namespace attune::llvm_module
