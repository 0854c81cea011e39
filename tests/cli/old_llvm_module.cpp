// Says that it has an interface which this Attune does not.
#include "runtime/jit/llvm_module/api.h"

extern "C" __attribute__((visibility("default"))) const AttLlvmApi* att_llvm_module() {
  static const AttLlvmApi api = {.abi_version = ATT_LLVM_ABI_VERSION + 1, .version = "99.0"};
  return &api;
}
