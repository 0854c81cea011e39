// The module's only exported symbol: the table of api.h.
#include <clang/Basic/Version.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/CodeGen/MachineFunction.h>
#include <llvm/CodeGen/SchedulerRegistry.h>
#include <llvm/CodeGen/SelectionDAGISel.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/Host.h>

#include <cstdlib>
#include <cstring>
#include <exception>

#include "runtime/jit/llvm_module/parts.hpp"
#include "runtime/jit/llvm_module/ptx.hpp"

namespace attune::llvm_module {
namespace {

thread_local int guarded = 0;

void on_fatal_error(void*, const char* reason, bool) {
  if (guarded > 0) throw FatalError{reason};
}

// False when memory is out.
bool hand_over(const std::string& text, AttLlvmBuffer* buffer) {
  *buffer = {nullptr, 0};
  if (text.empty()) return true;
  void* data = std::malloc(text.size());
  if (data == nullptr) return false;
  std::memcpy(data, text.data(), text.size());
  *buffer = {data, text.size()};
  return true;
}

void release(AttLlvmBuffer* buffer) {
  std::free(const_cast<void*>(buffer->data));
  *buffer = {nullptr, 0};
}

int compile(const AttLlvmCompileRequest* request, AttLlvmBuffer* image, AttLlvmBuffer* log) {
  *image = *log = {nullptr, 0};
  std::string code;
  std::string messages;
  bool done = false;
  try {
    const FatalErrorGuard guard;
    done = compile_source(*request, code, messages);
  } catch (const FatalError& error) {
    messages += "LLVM gave up: " + error.message + "\n";
  } catch (const std::exception& error) {
    messages += std::string("LLVM failed: ") + error.what() + "\n";
  }
  hand_over(messages, log);
  return done && hand_over(code, image);
}

void* load(const void* object, std::size_t object_size, const char* const* symbols,
           void** addresses, std::size_t symbol_count, AttLlvmBuffer* log) {
  *log = {nullptr, 0};
  std::string messages;
  void* handle = nullptr;
  try {
    const FatalErrorGuard guard;
    handle = load_object(object, object_size, symbols, addresses, symbol_count, messages);
  } catch (const FatalError& error) {
    messages = error.message;
  } catch (const std::exception& error) {
    messages = error.what();
  }
  hand_over(messages, log);
  return handle;
}

int host_has(const char* feature) {
  static const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  return features.lookup(feature);
}

int nvptx_knows(const char* name) {
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget("nvptx64-nvidia-cuda", error);
  if (target == nullptr) return 0;
  const std::unique_ptr<llvm::MCSubtargetInfo> subtarget(
      target->createMCSubtargetInfo("nvptx64-nvidia-cuda", "", ""));
  return subtarget != nullptr && subtarget->isCPUStringValid(name);
}

// As the function asks (ptx.hpp); else the source's order.
llvm::ScheduleDAGSDNodes* order_of_instructions(llvm::SelectionDAGISel* selection,
                                                llvm::CodeGenOptLevel level) {
  const llvm::StringRef order =
      selection->MF->getFunction().getFnAttribute(kOrder).getValueAsString();
  if (order == kLate) return createDAGLinearizer(selection, level);
  if (order == kParallel) return createILPListDAGScheduler(selection, level);
  if (order == kNarrow) return createBURRListDAGScheduler(selection, level);
  return createDefaultScheduler(selection, level);
}

llvm::RegisterScheduler order("attune", "as functions ask", &order_of_instructions);

AttLlvmApi make_api() {
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
  LLVMInitializeX86AsmParser();
  LLVMInitializeNVPTXTargetInfo();
  LLVMInitializeNVPTXTarget();
  LLVMInitializeNVPTXTargetMC();
  LLVMInitializeNVPTXAsmPrinter();
  // A kernel is one function: a tile body that stays out of line takes its registers through
  // memory.
  const char* const options[] = {"attune", "-inline-threshold=1000000", "-pre-RA-sched=attune"};
  llvm::cl::ParseCommandLineOptions(std::size(options), options);
  llvm::install_fatal_error_handler(&on_fatal_error);
  static const std::string host_cpu = llvm::sys::getHostCPUName().str();
  return {.abi_version = ATT_LLVM_ABI_VERSION,
          .version = CLANG_VERSION_STRING,
          .revision = ATTUNE_LLVM_REVISION,
          .host_cpu = host_cpu.c_str(),
          .host_has = &host_has,
          .nvptx_knows = &nvptx_knows,
          .compile = &compile,
          .load = &load,
          .unload = &unload_object,
          .release = &release};
}

}  // namespace

FatalErrorGuard::FatalErrorGuard() { ++guarded; }
FatalErrorGuard::~FatalErrorGuard() { --guarded; }

}  // namespace attune::llvm_module

extern "C" __attribute__((visibility("default"))) const AttLlvmApi* att_llvm_module() {
  static const AttLlvmApi api = attune::llvm_module::make_api();
  return &api;
}
