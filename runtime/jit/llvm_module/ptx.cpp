#include "runtime/jit/llvm_module/ptx.hpp"

#include <clang/CodeGen/BackendUtil.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/Metadata.h>
#include <llvm/Support/raw_ostream.h>

#include <vector>

#include "runtime/jit/llvm_module/string_stream.hpp"

#if LLVM_VERSION_MAJOR < 20
namespace llvm {
// Of the NVPTX back end, whose header LLVM does not install: it remembers what annotations said.
void clearAnnotationCache(const Module* module);
}  // namespace llvm
#endif

namespace attune::llvm_module {
namespace {

// LLVM's own handler ends the process at the first error.
class LogDiagnostics final : public llvm::DiagnosticHandler {
 public:
  explicit LogDiagnostics(std::string& log) : log_(log) {}

  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override {
    const bool is_error = info.getSeverity() == llvm::DS_Error;
    if (!is_error && info.getSeverity() != llvm::DS_Warning) return true;
    llvm::raw_string_ostream stream(log_);
    llvm::DiagnosticPrinterRawOStream printer(stream);
    stream << (is_error ? "error: " : "warning: ");
    info.print(printer);
    stream << '\n';
    return true;
  }
  bool isAnyRemarkEnabled() const override { return false; }

 private:
  std::string& log_;
};

#if LLVM_VERSION_MAJOR < 20
// Says of every struct that a kernel takes by value that the kernel only reads it, as
// `__grid_constant__` does: it is then used where the launch put it. Otherwise its address is that
// of a copy in local memory, where a TMA descriptor cannot be. Clang has the attribute from 20 on;
// the back end of 19 knows the annotation.
void mark_grid_constants(llvm::Module& module) {
  llvm::NamedMDNode* annotations = module.getNamedMetadata("nvvm.annotations");
  if (annotations == nullptr) return;
  llvm::LLVMContext& context = module.getContext();
  llvm::IntegerType* i32 = llvm::Type::getInt32Ty(context);
  std::vector<llvm::MDNode*> added;
  for (const llvm::MDNode* node : annotations->operands()) {
    if (node->getNumOperands() < 2) continue;
    auto* kernel = llvm::mdconst::dyn_extract_or_null<llvm::Function>(node->getOperand(0));
    const auto* kind = llvm::dyn_cast_or_null<llvm::MDString>(node->getOperand(1));
    if (kernel == nullptr || kind == nullptr || kind->getString() != "kernel") continue;
    std::vector<llvm::Metadata*> indices;  // from 1
    for (const llvm::Argument& argument : kernel->args()) {
      if (!argument.hasByValAttr()) continue;
      indices.push_back(
          llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(i32, argument.getArgNo() + 1)));
    }
    if (indices.empty()) continue;
    added.push_back(llvm::MDNode::get(context, {llvm::ConstantAsMetadata::get(kernel),
                                                llvm::MDString::get(context, "grid_constant"),
                                                llvm::MDNode::get(context, indices)}));
  }
  for (llvm::MDNode* node : added) annotations->addOperand(node);
  llvm::clearAnnotationCache(&module);
}
#else
void mark_grid_constants(llvm::Module&) {}
#endif

}  // namespace

bool emit_ptx(clang::CompilerInstance& instance, llvm::Module& module, std::string& ptx,
              std::string& log) {
  mark_grid_constants(module);
  std::string messages;
  module.getContext().setDiagnosticHandler(std::make_unique<LogDiagnostics>(messages));
  clang::CodeGenOptions options = instance.getCodeGenOpts();
  options.DisableLLVMPasses = true;  // the action that made the module ran them
  clang::EmitBackendOutput(
      instance.getDiagnostics(), instance.getHeaderSearchOpts(), options, instance.getTargetOpts(),
      instance.getLangOpts(), instance.getTarget().getDataLayoutString(), &module,
      clang::Backend_EmitAssembly, instance.getFileManager().getVirtualFileSystemPtr(),
      std::make_unique<StringStream>(ptx));
  log += messages;
  return messages.find("error: ") == std::string::npos && !ptx.empty();
}

}  // namespace attune::llvm_module
