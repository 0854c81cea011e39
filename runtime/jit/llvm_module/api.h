/* The C table between libattune and its LLVM module (libattune_llvm.so). The module is opened at
 * run time, so neither side links the other; nothing but this header is shared. */
#ifndef ATTUNE_RUNTIME_JIT_LLVM_MODULE_API_H_
#define ATTUNE_RUNTIME_JIT_LLVM_MODULE_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a member changes; a module of another version is refused. */
#define ATT_LLVM_ABI_VERSION 3
#define ATT_LLVM_ENTRY_POINT "att_llvm_module"

/* Bytes that the module owns until release() takes them back. */
typedef struct AttLlvmBuffer {
  const void* data;
  size_t size;
} AttLlvmBuffer;

typedef struct AttLlvmCompileRequest {
  const char* source; /* need not end in a zero byte */
  size_t source_size;
  const char* file_name;        /* for diagnostics; no file is read */
  const char* const* arguments; /* of `clang -cc1`, without input and output */
  size_t argument_count;
  int listed; /* whether LLVM's list scheduler orders a GPU kernel's instructions (ptx.hpp) */
} AttLlvmCompileRequest;

typedef struct AttLlvmApi {
  uint32_t abi_version;
  const char* version; /* "19.1.7" */
  /* A hash of the module's source: what it makes of the same request may differ with it. */
  const char* revision;

  /* The host's processor as LLVM names it, and whether it has a feature ("avx2", "avx512f"). */
  const char* host_cpu;
  int (*host_has)(const char* feature);
  /* Whether `clang -target-cpu name` is known for NVPTX ("sm_90a"). */
  int (*nvptx_knows)(const char* name);

  /* Returns 1 on success. `image` is an object or assembly text, as the arguments ask; `log` has
   * Clang's diagnostics in either case. Thread-safe. */
  int (*compile)(const AttLlvmCompileRequest* request, AttLlvmBuffer* image, AttLlvmBuffer* log);

  /* Links a relocatable object into this process (ORC, JITLink) and looks `symbols` up. An object
   * may call nothing but the few C functions that the module provides. Returns a handle for
   * unload(), or null with the reason in `log`. Thread-safe. */
  void* (*load)(const void* object, size_t object_size, const char* const* symbols,
                void** addresses, size_t symbol_count, AttLlvmBuffer* log);
  void (*unload)(void* handle);

  void (*release)(AttLlvmBuffer* buffer);
} AttLlvmApi;

typedef const AttLlvmApi* (*AttLlvmEntryPoint)(void);

#ifdef __cplusplus
}
#endif
#endif /* ATTUNE_RUNTIME_JIT_LLVM_MODULE_API_H_ */
