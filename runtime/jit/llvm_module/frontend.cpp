// Clang as a function from text to text: one buffer in, one buffer out, no file touched.
#include <clang/Basic/DiagnosticOptions.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticBuffer.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <llvm/ADT/SmallString.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/VirtualFileSystem.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <string_view>

#include "runtime/jit/llvm_module/parts.hpp"
#include "runtime/jit/llvm_module/ptx.hpp"
#include "runtime/jit/llvm_module/string_stream.hpp"

namespace attune::llvm_module {
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
  return module != nullptr && emit_ptx(instance, *module, request.listed != 0, image, log);
}

}  // namespace attune::llvm_module
