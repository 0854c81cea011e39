// Clang as a function from text to text: one buffer in, one buffer out, no file touched.
#include <clang/Basic/DiagnosticOptions.h>
#include <clang/CodeGen/BackendUtil.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticBuffer.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <llvm/ADT/SmallString.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/VirtualFileSystem.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <string_view>

#include "runtime/jit/llvm_module/parts.hpp"
#include "runtime/jit/llvm_module/ptx.hpp"
#include "runtime/jit/llvm_module/string_stream.hpp"

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

// False on failure; LLVM's words are added to `log`.
bool emit_ptx(clang::CompilerInstance& instance, llvm::Module& module, std::string& ptx,
              std::string& log) {
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

}  // namespace

bool compile_source(const AttLlvmCompileRequest& request, std::string& image, std::string& log) {
  image.clear();
  llvm::raw_string_ostream log_stream(log);
  llvm::IntrusiveRefCntPtr<clang::DiagnosticOptions> options = new clang::DiagnosticOptions;
  options->ShowColors = false;
  options->ShowPresumedLoc = true;
  auto* printer = new clang::TextDiagnosticPrinter(log_stream, options.get());

  auto invocation = std::make_shared<clang::CompilerInvocation>();
  {
    clang::DiagnosticsEngine engine(new clang::DiagnosticIDs, options, printer,
                                    /*ShouldOwnClient=*/false);
    const llvm::ArrayRef<const char*> arguments(request.arguments, request.argument_count);
    if (!clang::CompilerInvocation::CreateFromArgs(*invocation, arguments, engine)) {
      delete printer;
      return false;
    }
  }
  // The arguments name no input, which Clang reads as standard input: this buffer takes its place.
  const llvm::MemoryBufferRef source(llvm::StringRef(request.source, request.source_size),
                                     request.file_name);
  clang::FrontendOptions& frontend = invocation->getFrontendOpts();
  const clang::InputKind kind = frontend.DashX;
  frontend.Inputs = {clang::FrontendInputFile(source, kind)};
  // The process outlives this compile.
  frontend.DisableFree = false;
  invocation->getCodeGenOpts().DisableFree = false;
  const clang::frontend::ActionKind action_kind = frontend.ProgramAction;

  clang::CompilerInstance instance;
  instance.setInvocation(std::move(invocation));
  instance.createDiagnostics(printer, /*ShouldOwnClient=*/true);
  instance.setVerboseOutputStream(std::make_unique<llvm::raw_null_ostream>());
  // An empty file system: an include in the text finds nothing.
  instance.createFileManager(llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>());
  instance.setOutputStream(std::make_unique<StringStream>(image));

  if (action_kind == clang::frontend::EmitObj) {
    clang::EmitObjAction action;
    return instance.ExecuteAction(action) && !instance.getDiagnostics().hasErrorOccurred() &&
           !image.empty();
  }
  clang::EmitLLVMOnlyAction action;
  if (!instance.ExecuteAction(action) || instance.getDiagnostics().hasErrorOccurred()) return false;
  const std::unique_ptr<llvm::Module> module = action.takeModule();
  log_stream.flush();
  if (module == nullptr) return false;
  prepare_for_ptx(*module, request.listed != 0);
  return emit_ptx(instance, *module, image, log);
}

}  // namespace attune::llvm_module
