// Distributions build Clang with Polly, which Clang then asks for by this name. Attune has no use
// for it: an empty plugin takes its place, and the module stays smaller by its size.
#include <llvm/Passes/PassPlugin.h>

llvm::PassPluginLibraryInfo getPollyPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "none", LLVM_VERSION_STRING, [](llvm::PassBuilder&) {}};
}
