// A libcuda.so.1 for tests of examples/train on machines without a GPU: it runs the kernels of
// examples/train/kernels.cu, compiled as C++, on the host. Memory is the host's, work is done when
// a call returns. What it knows of the driver is what the example calls.
//
// A block's threads are coroutines in turn: each runs up to a barrier, then the next one does. So
// all of a warp, or of a block, have come to a barrier before any goes on from it.
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr std::size_t kStackBytes = 32768;

struct Dim3 {
  unsigned x, y, z;
};
Dim3 threadIdx, blockIdx, blockDim, gridDim;

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool is_done = false;
};
std::vector<Thread> threads(1024);
ucontext_t scheduler;
void (*body)(void** arguments);
void** body_arguments;
float shuffled[1024];

void barrier() {
  const Dim3 own = threadIdx;
  swapcontext(&threads[own.x].context, &scheduler);
  threadIdx = own;
}

void run_thread() {
  const unsigned own = threadIdx.x;
  body(body_arguments);
  threads[own].is_done = true;
}

void run_block() {
  for (unsigned t = 0; t < blockDim.x; ++t) {
    Thread& thread = threads[t];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &scheduler;
    thread.is_done = false;
    makecontext(&thread.context, run_thread, 0);
  }
  for (bool is_any = true; is_any;) {
    is_any = false;
    for (unsigned t = 0; t < blockDim.x; ++t) {
      if (threads[t].is_done) continue;
      threadIdx = {t, 0, 0};
      swapcontext(&scheduler, &threads[t].context);
      is_any = is_any || !threads[t].is_done;
    }
  }
}

// What kernels.cu takes of CUDA C++.
void __syncthreads() { barrier(); }
void __syncwarp() { barrier(); }
float __shfl_xor_sync(unsigned, float value, int mask) {
  shuffled[threadIdx.x] = value;
  barrier();
  const float other = shuffled[threadIdx.x ^ static_cast<unsigned>(mask)];
  barrier();  // before the next one writes
  return other;
}
unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
float __uint_as_float(unsigned value) { return std::bit_cast<float>(value); }

#define __global__
#define __device__ static
#define __shared__ static
#define __launch_bounds__(threads)
using std::size_t;
#include "examples/train/kernels.cu"

template <typename... Parameters>
struct Caller {
  template <void (*Kernel)(Parameters...)>
  static void call(void** arguments) {
    call_with<Kernel>(arguments, std::index_sequence_for<Parameters...>());
  }
  template <void (*Kernel)(Parameters...), std::size_t... I>
  static void call_with(void** arguments, std::index_sequence<I...>) {
    Kernel(*static_cast<Parameters*>(arguments[I])...);
  }
};
template <typename... Parameters>
Caller<Parameters...> caller_of(void (*)(Parameters...));
#define KERNEL(name) {#name, decltype(caller_of(name))::template call<name>}

using Body = void (*)(void**);
const std::map<std::string, Body> kKernels = {
    KERNEL(add),           KERNEL(gelu),        KERNEL(gelu_gradient),
    KERNEL(to_bf16),       KERNEL(from_bf16),   KERNEL(adamw),
    KERNEL(sum_parts),     KERNEL(rms_norm),    KERNEL(rms_norm_gradient),
    KERNEL(cross_entropy), KERNEL(mean_loss),   KERNEL(norm_gain_parts),
    KERNEL(embed),         KERNEL(embed_parts), KERNEL(multiply)};

constexpr char kCode[] = "kernels.cu";
constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;
std::map<std::uint64_t, std::size_t> allocations;
std::size_t used_bytes = 0;

template <typename T>
T* pointer(std::uint64_t address) {
  return std::bit_cast<T*>(address);
}

}  // namespace

// Results are CUresult: 0 success, 1 invalid value, 2 out of memory, 500 not found.
extern "C" {
int cuInit(unsigned) { return 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR", 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error", 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "emulated", static_cast<std::size_t>(bytes));
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16 ? 2 : attribute == 75 ? 9 : 0;  // processors, compute capability 9.0
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &scheduler, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = &scheduler, 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuModuleLoadData(void** module, const void* image) {
  return *module = &scheduler, std::memcmp(image, kCode, sizeof kCode) == 0 ? 0 : 1;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  const auto found = kKernels.find(name);
  if (found == kKernels.end()) return 500;
  *function = reinterpret_cast<void*>(found->second);
  return 0;
}
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned, unsigned, unsigned, void*, void** parameters,
                   void**) {
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || block_x == 0 || block_x > 1024 ||
      grid_y > 65535 || grid_z > 65535) {
    return 1;
  }
  body = reinterpret_cast<Body>(function);
  body_arguments = parameters;
  gridDim = {grid_x, grid_y, grid_z};
  blockDim = {block_x, 1, 1};
  for (unsigned z = 0; z < grid_z; ++z) {
    for (unsigned y = 0; y < grid_y; ++y) {
      for (unsigned x = 0; x < grid_x; ++x) {
        blockIdx = {x, y, z};
        run_block();
      }
    }
  }
  return 0;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  if (bytes > kMemoryBytes - used_bytes) return 2;
  void* data = std::malloc(bytes);
  std::memset(data, 0xFF, bytes);  // NaN: who reads it unwritten is found
  *address = std::bit_cast<std::uint64_t>(data);
  used_bytes += allocations[*address] = bytes;
  return 0;
}
int cuMemFree_v2(std::uint64_t address) {
  used_bytes -= allocations[address];
  allocations.erase(address);
  std::free(pointer<void>(address));
  return 0;
}
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *total = kMemoryBytes;
  *free = kMemoryBytes - used_bytes;
  return 0;
}
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  return std::memcpy(pointer<void>(to), from, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  return std::memcpy(to, pointer<void>(from), bytes), 0;
}
int cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t bytes, void*) {
  return std::memset(pointer<void>(to), value, bytes), 0;
}

const char* nvrtcGetErrorString(int) { return "an error"; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  return *program = &scheduler, 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetCUBINSize(void*, std::size_t* bytes) { return *bytes = sizeof kCode, 0; }
int nvrtcGetCUBIN(void*, char* code) { return std::memcpy(code, kCode, sizeof kCode), 0; }
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) { return *bytes = 0, 0; }
int nvrtcGetProgramLog(void*, char*) { return 0; }
}
