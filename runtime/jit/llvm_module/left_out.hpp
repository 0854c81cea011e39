// Passes of the back end that a module's context leaves out, by how their names begin.
#pragma once

#include <llvm/ADT/STLExtras.h>
#include <llvm/IR/OptBisect.h>

#include <utility>
#include <vector>

namespace attune::llvm_module {

class LeftOut final : public llvm::OptPassGate {
 public:
  explicit LeftOut(std::vector<llvm::StringRef> names) : names_(std::move(names)) {}
  bool isEnabled() const override { return true; }
  bool shouldRunPass(const llvm::StringRef pass, llvm::StringRef) override {
    return llvm::none_of(names_, [&](llvm::StringRef name) { return pass.starts_with(name); });
  }

 private:
  const std::vector<llvm::StringRef> names_;
};

}  // namespace attune::llvm_module
