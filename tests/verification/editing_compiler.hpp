// Faults planted in kernels: a compiler that changes lines of the source on its way.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/jit/compiler.hpp"

namespace attune::planted {

// `from` stands in the source exactly once.
struct Edit {
  std::string from, to;
};

struct Fault {
  std::string name;
  std::vector<Edit> edits;
};

// The source with the fault. An edit that finds no place, or two, is an error, so that a fault
// cannot be lost by a change of the templates.
inline Result<std::string> with_fault(std::string source, const Fault& fault) {
  for (const Edit& edit : fault.edits) {
    const auto at = source.find(edit.from);
    if (at == std::string::npos || source.find(edit.from, at + 1) != std::string::npos) {
      return Error{.id = "planted-fault", .message = "not once in the source: " + edit.from};
    }
    source.replace(at, edit.from.size(), edit.to);
  }
  return source;
}

// Compiles with another, which must outlive it.
class EditingCompiler final : public Compiler {
 public:
  EditingCompiler(Compiler& real, Fault fault) : real_(real), fault_(std::move(fault)) {}
  std::string identity() const override { return real_.identity() + " with " + fault_.name; }
  bool supports(Target target) const override { return real_.supports(target); }
  Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                 Target target) override {
    ATT_TRY(const std::string edited, with_fault(source, fault_));
    return real_.compile(edited, symbol, target);
  }
  const std::string& name() const { return fault_.name; }

 private:
  Compiler& real_;
  const Fault fault_;
};

}  // namespace attune::planted
