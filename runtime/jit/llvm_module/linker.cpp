// Relocatable objects -> code in this process, through ORC and JITLink.
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/Support/MemoryBuffer.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "runtime/jit/llvm_module/parts.hpp"

namespace attune::llvm_module {
namespace {

namespace orc = llvm::orc;

// All that generated code may call. Code generators make memory functions out of plain loops; the
// rest is what remains of an expression's functions when they do not become vector code.
struct Provided {
  const char* name;
  void* address;
};
const Provided kProvided[] = {
    {"memcpy", reinterpret_cast<void*>(&std::memcpy)},
    {"memmove", reinterpret_cast<void*>(&std::memmove)},
    {"memset", reinterpret_cast<void*>(&std::memset)},
    {"expf", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::expf))},
    {"exp2f", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::exp2f))},
    {"logf", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::logf))},
    {"log2f", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::log2f))},
    {"tanhf", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::tanhf))},
    {"sqrtf", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::sqrtf))},
    {"floorf", reinterpret_cast<void*>(static_cast<float (*)(float)>(&::floorf))},
    {"fminf", reinterpret_cast<void*>(static_cast<float (*)(float, float)>(&::fminf))},
    {"fmaxf", reinterpret_cast<void*>(static_cast<float (*)(float, float)>(&::fmaxf))},
};

// One JIT for the process; every object gets a library of its own in it, so names never meet.
struct Linker {
  std::unique_ptr<orc::LLJIT> jit;
  std::string failure;
  std::atomic<unsigned long long> next_library{0};
};

std::unique_ptr<Linker> make_linker() {
  auto linker = std::make_unique<Linker>();
  auto jit =
      orc::LLJITBuilder()
          .setLinkProcessSymbolsByDefault(false)
          .setPlatformSetUp(orc::setUpInactivePlatform)
          .setObjectLinkingLayerCreator([](orc::ExecutionSession& session, const llvm::Triple&) {
            auto memory = llvm::jitlink::InProcessMemoryManager::Create();
            if (!memory)
              return llvm::Expected<std::unique_ptr<orc::ObjectLayer>>(memory.takeError());
            return llvm::Expected<std::unique_ptr<orc::ObjectLayer>>(
                std::make_unique<orc::ObjectLinkingLayer>(session, std::move(*memory)));
          })
          .create();
  if (!jit) {
    linker->failure = llvm::toString(jit.takeError());
    return linker;
  }
  linker->jit = std::move(*jit);
  // Failures come back from the look-up; LLVM would print them as well.
  linker->jit->getExecutionSession().setErrorReporter(
      [](llvm::Error error) { llvm::consumeError(std::move(error)); });
  return linker;
}

// Never destroyed: kernels of static lifetime may outlive any order of destruction.
Linker& linker() {
  static Linker* instance = make_linker().release();
  return *instance;
}

llvm::Error provide(orc::JITDylib& library) {
  orc::SymbolMap symbols;
  for (const Provided& function : kProvided) {
    symbols[linker().jit->mangleAndIntern(function.name)] = {
        orc::ExecutorAddr::fromPtr(function.address),
        llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  }
  return library.define(orc::absoluteSymbols(std::move(symbols)));
}

llvm::Error link(orc::JITDylib& library, const void* object, std::size_t size,
                 const char* const* symbols, void** addresses, std::size_t symbol_count) {
  if (llvm::Error error = provide(library)) return error;
  auto buffer = llvm::MemoryBuffer::getMemBufferCopy(
      llvm::StringRef(static_cast<const char*>(object), size), library.getName());
  if (llvm::Error error = linker().jit->addObjectFile(library, std::move(buffer))) return error;
  for (std::size_t i = 0; i < symbol_count; ++i) {
    auto address = linker().jit->lookup(library, symbols[i]);
    if (!address) return address.takeError();
    addresses[i] = address->toPtr<void*>();
  }
  return llvm::Error::success();
}

}  // namespace

void* load_object(const void* object, std::size_t size, const char* const* symbols,
                  void** addresses, std::size_t symbol_count, std::string& log) {
  if (!linker().jit) {
    log = linker().failure;
    return nullptr;
  }
  const std::string name = "kernel" + std::to_string(linker().next_library.fetch_add(1));
  auto library = linker().jit->createJITDylib(name);
  if (!library) {
    log = llvm::toString(library.takeError());
    return nullptr;
  }
  if (llvm::Error error = link(*library, object, size, symbols, addresses, symbol_count)) {
    log = llvm::toString(std::move(error));
    unload_object(&*library);
    return nullptr;
  }
  return &*library;
}

void unload_object(void* handle) {
  llvm::consumeError(
      linker().jit->getExecutionSession().removeJITDylib(*static_cast<orc::JITDylib*>(handle)));
}

}  // namespace attune::llvm_module
