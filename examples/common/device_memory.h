/* Memory for the examples: of GPU 0 through the CUDA driver where there is one, else of the host.
 * A real application has its own; this one is opened at run time so that the examples build and run
 * without CUDA. Plain C11 or C++, no error is recovered from: a failed call ends the example. */
#ifndef ATTUNE_EXAMPLES_DEVICE_MEMORY_H_
#define ATTUNE_EXAMPLES_DEVICE_MEMORY_H_

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long device_address;
typedef struct device_memory {
  int is_gpu;
  int (*mem_alloc)(device_address*, size_t);
  int (*mem_free)(device_address);
  int (*to_device)(device_address, const void*, size_t);
  int (*to_host)(void*, device_address, size_t);
  int (*synchronize)(void);
} device_memory;

static void device_check(int result, const char* call) {
  if (result == 0) return;
  fprintf(stderr, "%s failed with CUDA error %d\n", call, result);
  exit(1);
}

/* What the driver calls so. ISO C converts no object's pointer to a function's. */
static void device_bind(void* driver, const char* name, void* function) {
  void* found = dlsym(driver, name);
  memcpy(function, &found, sizeof found);
}

/* Makes GPU 0's primary context current, which is what att_runtime_create looks for. */
static device_memory device_memory_open(void) {
  device_memory memory;
  memset(&memory, 0, sizeof memory);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) return memory;
  int (*init)(unsigned);
  int (*get)(int*, int);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  device_bind(driver, "cuInit", &init);
  device_bind(driver, "cuDeviceGet", &get);
  device_bind(driver, "cuDevicePrimaryCtxRetain", &retain);
  device_bind(driver, "cuCtxSetCurrent", &set_current);
  int device = 0;
  void* context = NULL;
  if (init(0) != 0 || get(&device, 0) != 0) return memory;
  device_check(retain(&context, device), "cuDevicePrimaryCtxRetain");
  device_check(set_current(context), "cuCtxSetCurrent");
  device_bind(driver, "cuMemAlloc_v2", &memory.mem_alloc);
  device_bind(driver, "cuMemFree_v2", &memory.mem_free);
  device_bind(driver, "cuMemcpyHtoD_v2", &memory.to_device);
  device_bind(driver, "cuMemcpyDtoH_v2", &memory.to_host);
  device_bind(driver, "cuCtxSynchronize", &memory.synchronize);
  memory.is_gpu = 1;
  return memory;
}

/* 64-byte aligned, `bytes` copied from `from` unless it is NULL. */
static void* device_copy_of(const device_memory* memory, const void* from, size_t bytes) {
  const size_t alignment = 64;
  void* pointer;
  if (memory->is_gpu) {
    device_address address = 0;
    device_check(memory->mem_alloc(&address, bytes), "cuMemAlloc");
    if (from != NULL) device_check(memory->to_device(address, from, bytes), "cuMemcpyHtoD");
    return (void*)(size_t)address;
  }
  pointer = aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (pointer == NULL) abort();
  if (from != NULL) memcpy(pointer, from, bytes);
  return pointer;
}

static void device_read(const device_memory* memory, void* to, const void* from, size_t bytes) {
  if (!memory->is_gpu) {
    memcpy(to, from, bytes);
    return;
  }
  device_check(memory->to_host(to, (device_address)(size_t)from, bytes), "cuMemcpyDtoH");
}

static void device_free(const device_memory* memory, void* pointer) {
  if (memory->is_gpu) {
    memory->mem_free((device_address)(size_t)pointer);
  } else {
    free(pointer);
  }
}

static void device_wait(const device_memory* memory) {
  if (memory->is_gpu) device_check(memory->synchronize(), "cuCtxSynchronize");
}

static double seconds_now(void) {
  struct timespec now;
#ifdef CLOCK_MONOTONIC
  clock_gettime(CLOCK_MONOTONIC, &now);
#else
  timespec_get(&now, TIME_UTC); /* all that C11 has */
#endif
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* bf16 is the upper half of a float; round to nearest, ties to even. */
static unsigned short to_bf16(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return (unsigned short)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
static float from_bf16(unsigned short value) {
  const unsigned bits = (unsigned)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

#endif
