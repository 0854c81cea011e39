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

namespace attune::llvm_module {
namespace {

// Copies the instance's output out of it before the instance, which owns the stream, dies.
class StringStream final : public llvm::raw_pwrite_stream {
 public:
  explicit StringStream(std::string& text) : text_(text) { SetUnbuffered(); }

 private:
  void write_impl(const char* bytes, std::size_t size) override { text_.append(bytes, size); }
  void pwrite_impl(const char* bytes, std::size_t size, std::uint64_t offset) override {
    text_.replace(offset, size, bytes, size);
  }
  std::uint64_t current_pos() const override { return text_.size(); }

  std::string& text_;
};

std::unique_ptr<clang::FrontendAction> make_action(clang::frontend::ActionKind kind) {
  if (kind == clang::frontend::EmitAssembly) return std::make_unique<clang::EmitAssemblyAction>();
  return std::make_unique<clang::EmitObjAction>();
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
  frontend.DisableFree = false;
  const clang::frontend::ActionKind action_kind = frontend.ProgramAction;

  clang::CompilerInstance instance;
  instance.setInvocation(std::move(invocation));
  instance.createDiagnostics(printer, /*ShouldOwnClient=*/true);
  instance.setVerboseOutputStream(std::make_unique<llvm::raw_null_ostream>());
  // An empty file system: an include in the text finds nothing.
  instance.createFileManager(llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>());
  instance.setOutputStream(std::make_unique<StringStream>(image));

  const std::unique_ptr<clang::FrontendAction> action = make_action(action_kind);
  const bool done = instance.ExecuteAction(*action);
  return done && !instance.getDiagnostics().hasErrorOccurred() && !image.empty();
}

}  // namespace attune::llvm_module
