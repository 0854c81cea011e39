// The CUDA driver's functions that Attune and its tests call, of emulated GPUs (one, or
// ATTUNE_EMULATOR_DEVICES of them, each with a context of its own). Everything is done when it
// is asked for; a capture keeps it.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "runtime/device/cuda_api.hpp"
#include "tests/emulator/image.hpp"
#include "tests/emulator/machine.hpp"
#include "tests/emulator/tensor_map.hpp"

namespace {

using attune::kCudaErrorInvalidValue;
using attune::kCudaSuccess;
constexpr CUresult kOutOfMemory = 2, kNotFound = 500, kInvalidImage = 200, kInvalidContext = 201,
                   kInvalidHandle = 400, kLaunchFailed = 719;

std::recursive_mutex& lock() {
  static std::recursive_mutex mutex;
  return mutex;
}
using Locked = std::lock_guard<std::recursive_mutex>;

using Work = std::function<CUresult()>;
using Graph = std::vector<Work>;

// A GPU's; its number is its place. GPUs are alike and share their memory.
struct Context {
} the_contexts[8];
// Left behind: hosts free what they have at the process' end, when a thread's objects are gone.
std::vector<CUcontext>& contexts() {
  thread_local auto* const own = new std::vector<CUcontext>;
  return *own;
}

int device_count() {
  const char* const text = std::getenv("ATTUNE_EMULATOR_DEVICES");
  return std::clamp(text == nullptr ? 1 : std::atoi(text), 1,
                    static_cast<int>(std::size(the_contexts)));
}
CUcontext context_of(CUdevice device) { return reinterpret_cast<CUcontext>(&the_contexts[device]); }
// Null: none.
CUcontext current_context() { return contexts().empty() ? nullptr : contexts().back(); }

}  // namespace

struct CUstream_st {
  CUcontext context;
  std::unique_ptr<Graph> captured;
};
struct CUgraph_st {
  Graph work;
};
struct CUgraphExec_st {
  Graph work;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
struct CUlib_st {
  std::shared_ptr<void> library;
  std::vector<std::unique_ptr<CUkern_st>> kernels;
};
struct CUkern_st {
  CUcontext context;  // that its code was loaded in
  std::shared_ptr<void> library;
  const emu::KernelEntry* entry;
};

namespace {

CUresult enqueue(CUstream stream, Work work) {
  if (stream == nullptr || stream->captured == nullptr) return work();
  stream->captured->push_back(std::move(work));
  return kCudaSuccess;
}

CUresult run(const emu::Launch& launch) {
  try {
    emu::machine.run(launch);
    return kCudaSuccess;
  } catch (const emu::Fault& found) {
    std::fprintf(stderr, "emulated GPU: %s\n", found.what());
    return kLaunchFailed;
  }
}

bool is_tensor_map(std::uint32_t rank, const void* address, const std::uint64_t* dims,
                   const std::uint64_t* strides, const std::uint32_t* box, int element_bytes,
                   int swizzle) {
  if (rank < 3 || rank > 5 || reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  for (std::uint32_t i = 0; i < rank; ++i) {
    if (dims[i] == 0 || dims[i] > (1ull << 32) || box[i] == 0 || box[i] > 256) return false;
    if (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] >= (1ull << 40))) return false;
  }
  const std::uint32_t row_bytes = box[0] * static_cast<std::uint32_t>(element_bytes);
  return row_bytes % 16 == 0 && (swizzle == 0 || row_bytes <= 16u << swizzle);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return kCudaSuccess; }
CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == kCudaSuccess ? "CUDA_SUCCESS" : "CUDA_ERROR_EMULATED";
  return kCudaSuccess;
}
CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = result == kLaunchFailed ? "the emulated GPU found a fault" : "emulated";
  return kCudaSuccess;
}
CUresult cuDriverGetVersion(int* version) { return *version = 13000, kCudaSuccess; }
CUresult cuDeviceGetCount(int* count) { return *count = device_count(), kCudaSuccess; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return kCudaErrorInvalidValue;
  return *device = ordinal, kCudaSuccess;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(length), "emulated sm_%d", emu::emulated_arch());
  return kCudaSuccess;
}
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  namespace id = attune::cuda_attribute;
  const bool is_hopper = emu::emulated_arch() == 90;
  static const std::map<int, int> kValues = {
      {id::kClockRate, is_hopper ? 1980000 : 1410000},
      {id::kProcessorCount, is_hopper ? 132 : 108},
      {id::kMemoryClockRate, is_hopper ? 3201000 : 1215000},
      {id::kMemoryBusWidth, is_hopper ? 6144 : 5120},
      {id::kL2Bytes, is_hopper ? 60 << 20 : 40 << 20},
      {id::kComputeMajor, emu::emulated_arch() / 10},
      {id::kComputeMinor, emu::emulated_arch() % 10},
      {id::kSharedBytesPerProcessor, is_hopper ? 228 << 10 : 164 << 10},
      {id::kRegistersPerProcessor, 65536},
      {id::kSharedBytesPerBlockOptin, is_hopper ? 227 << 10 : 163 << 10}};
  const auto found = kValues.find(attribute);
  if (found == kValues.end()) return kCudaErrorInvalidValue;
  return *value = found->second, kCudaSuccess;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  return *bytes = emu::memory_bytes(), kCudaSuccess;
}
CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Locked locked(lock());
  *total = emu::memory_bytes();
  return *free = *total - emu::used_bytes(), kCudaSuccess;
}
CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", device);
  return kCudaSuccess;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return *context = context_of(device), kCudaSuccess;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return kCudaSuccess; }
CUresult cuCtxGetCurrent(CUcontext* context) { return *context = current_context(), kCudaSuccess; }
CUresult cuCtxSetCurrent(CUcontext context) {
  if (!contexts().empty()) contexts().pop_back();
  if (context != nullptr) contexts().push_back(context);
  return kCudaSuccess;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  contexts().push_back(context);
  return kCudaSuccess;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (contexts().empty()) return kCudaErrorInvalidValue;
  if (context != nullptr) *context = contexts().back();
  contexts().pop_back();
  return kCudaSuccess;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  const CUcontext current = current_context();
  if (current == nullptr) return kInvalidContext;
  *device = static_cast<CUdevice>(reinterpret_cast<Context*>(current) - the_contexts);
  return kCudaSuccess;
}
CUresult cuCtxSynchronize() { return kCudaSuccess; }
CUresult cuThreadExchangeStreamCaptureMode(int* mode) { return *mode = 0, kCudaSuccess; }

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, void*, void**, unsigned, void*,
                           void**, unsigned) {
  const Locked locked(lock());
  const emu::ImageHead& head = *static_cast<const emu::ImageHead*>(code);
  if (std::memcmp(head.magic, emu::kImageMagic, sizeof head.magic) != 0) return kInvalidImage;
  // A name of its own: dlopen() takes a library that bears the same one for the same.
  static int count = 0;
  const std::string name =
      (std::filesystem::temp_directory_path() /
       ("attune_kernel_" + std::to_string(getpid()) + "_" + std::to_string(count++) + ".so"))
          .string();
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(&head + 1), static_cast<std::streamsize>(head.bytes));
  auto loaded = std::make_unique<CUlib_st>();
  void* const opened = dlopen(name.c_str(), RTLD_NOW);
  std::filesystem::remove(name);
  if (opened == nullptr) {
    std::fprintf(stderr, "emulated GPU: %s\n", dlerror());
    return kInvalidImage;
  }
  loaded->library.reset(opened, dlclose);
  *library = loaded.release();
  return kCudaSuccess;
}
CUresult cuLibraryUnload(CUlibrary library) {
  const Locked locked(lock());
  delete library;
  return kCudaSuccess;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const Locked locked(lock());
  using Kernels = const emu::KernelEntry*();
  auto* const kernels = reinterpret_cast<Kernels*>(dlsym(library->library.get(), "emu_kernels"));
  const emu::KernelEntry* entry = kernels == nullptr ? nullptr : kernels();
  while (entry != nullptr && std::strcmp(entry->name, name) != 0) entry = entry->next;
  if (entry == nullptr) return kNotFound;
  library->kernels.push_back(
      std::make_unique<CUkern_st>(CUkern_st{current_context(), library->library, entry}));
  *kernel = library->kernels.back().get();
  return kCudaSuccess;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return *function = reinterpret_cast<CUfunction>(kernel), kCudaSuccess;
}
CUresult cuKernelSetAttribute(int, int, CUkernel, CUdevice) { return kCudaSuccess; }

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void**) {
  const Locked locked(lock());
  const CUkern_st& chosen = *reinterpret_cast<CUkernel>(function);
  const CUcontext launching =
      config->hStream == nullptr ? current_context() : config->hStream->context;
  if (launching != chosen.context || current_context() == nullptr) return kInvalidHandle;
  // Its code stays while a graph has the launch.
  std::shared_ptr<emu::BoundKernel> kernel(
      chosen.entry->bind(parameters),
      [library = chosen.library](const emu::BoundKernel* done) { delete done; });
  emu::Launch launch{.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                     .threads = config->blockDimX,
                     .shared_bytes = config->sharedMemBytes,
                     .cluster = 1,
                     .kernel = kernel.get()};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == attune::kLaunchClusterDimension) {
      launch.cluster = config->attrs[i].value.cluster_dim.x;
    }
  }
  const auto [x, y, z] = launch.grid;
  if (x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535 || emu::u64{x} * y * z >> 32 != 0 ||
      launch.threads == 0 || launch.threads > 1024 || config->blockDimY != 1 ||
      config->blockDimZ != 1 || x % launch.cluster != 0) {
    return kCudaErrorInvalidValue;
  }
  return enqueue(config->hStream, [kernel, launch] { return run(launch); });
}
// The same by their older names: examples/train calls these.
CUresult cuModuleLoadData(CUlibrary* module, const void* code) {
  return cuLibraryLoadData(module, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
}
CUresult cuModuleGetFunction(CUfunction* function, CUlibrary module, const char* name) {
  return cuLibraryGetKernel(reinterpret_cast<CUkernel*>(function), module, name);
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  const CUlaunchConfig config{grid_x,  grid_y,       grid_z, block_x, block_y,
                              block_z, shared_bytes, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, function, parameters, extra);
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  const Locked locked(lock());
  if (bytes == 0) return kCudaErrorInvalidValue;
  if (bytes > emu::memory_bytes() - emu::used_bytes()) return kOutOfMemory;
  // Its end is a page's, and behind that is a page that nobody may touch.
  constexpr std::size_t kPage = 4096, kAlignment = 256;
  const std::size_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t pages = (used + kPage - 1) / kPage * kPage;
  void* const made = mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  mprotect(static_cast<char*>(made) + pages, kPage, PROT_NONE);
  void* const start = static_cast<char*>(made) + (pages - used);
  std::memset(start, 0xFF, bytes);
  emu::remember_memory(start, bytes);
  *pointer = reinterpret_cast<CUdeviceptr>(start);
  return kCudaSuccess;
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  const Locked locked(lock());
  constexpr std::uintptr_t kPage = 4096;
  const std::size_t bytes = emu::forget_memory(reinterpret_cast<void*>(pointer));
  if (bytes == 0) return kCudaErrorInvalidValue;
  const std::uintptr_t begin = pointer / kPage * kPage;
  const std::uintptr_t end = (pointer + bytes + kPage - 1) / kPage * kPage + kPage;
  munmap(reinterpret_cast<void*>(begin), end - begin);
  return kCudaSuccess;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  const Locked locked(lock());
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kCudaSuccess;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  const Locked locked(lock());
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return kCudaSuccess;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const Locked locked(lock());
  return enqueue(stream, [=] { return cuMemcpyDtoH_v2(to, from, bytes); });
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                              CUstream stream) {
  const Locked locked(lock());
  return enqueue(stream, [=] { return cuMemcpyHtoD_v2(to, from, bytes); });
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, std::size_t bytes) {
  const Locked locked(lock());
  std::memset(reinterpret_cast<void*>(to), byte, bytes);
  return kCudaSuccess;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, std::size_t bytes, CUstream stream) {
  const Locked locked(lock());
  return enqueue(stream, [=] { return cuMemsetD8_v2(to, byte, bytes); });
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned word, std::size_t count, CUstream stream) {
  const Locked locked(lock());
  return enqueue(stream, [=] {
    unsigned* const words = reinterpret_cast<unsigned*>(to);
    for (std::size_t i = 0; i < count; ++i) words[i] = word;
    return kCudaSuccess;
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return *stream = new CUstream_st{current_context(), nullptr}, kCudaSuccess;
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  delete stream;
  return kCudaSuccess;
}
CUresult cuStreamSynchronize(CUstream) { return kCudaSuccess; }
CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  *status = stream != nullptr && stream->captured != nullptr;
  return kCudaSuccess;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, int) {
  stream->captured = std::make_unique<Graph>();
  return kCudaSuccess;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (stream->captured == nullptr) return kCudaErrorInvalidValue;
  *graph = new CUgraph_st{std::move(*stream->captured)};
  stream->captured.reset();
  return kCudaSuccess;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  return *executable = new CUgraphExec_st{graph->work}, kCudaSuccess;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream) {
  const Locked locked(lock());
  for (const Work& work : executable->work) {
    if (const CUresult result = work(); result != kCudaSuccess) return result;
  }
  return kCudaSuccess;
}
CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return kCudaSuccess;
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  delete executable;
  return kCudaSuccess;
}

CUresult cuEventCreate(CUevent* event, unsigned) { return *event = new CUevent_st, kCudaSuccess; }
CUresult cuEventDestroy_v2(CUevent event) {
  delete event;
  return kCudaSuccess;
}
CUresult cuEventRecord(CUevent event, CUstream) {
  event->time = std::chrono::steady_clock::now();
  return kCudaSuccess;
}
CUresult cuEventSynchronize(CUevent) { return kCudaSuccess; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return kCudaSuccess;
}

CUresult cuTensorMapEncodeTiled(void* map, int type, std::uint32_t rank, void* address,
                                const std::uint64_t* dims, const std::uint64_t* strides,
                                const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                                int, int) {
  const int element_bytes = type == attune::tensor_map::kFloat32 ? 4
                            : type == attune::tensor_map::kUint8 ? 1
                                                                 : 2;
  if (!is_tensor_map(rank, address, dims, strides, box, element_bytes, swizzle)) {
    return kCudaErrorInvalidValue;
  }
  emu::TensorMap made{};
  made.address = reinterpret_cast<std::uintptr_t>(address);
  made.rank = static_cast<unsigned char>(rank);
  made.element_bytes = static_cast<unsigned char>(element_bytes);
  made.swizzle = static_cast<unsigned char>(swizzle);
  for (std::uint32_t i = 0; i < rank; ++i) {
    made.dims[i] = static_cast<emu::u32>(dims[i]);
    made.box[i] = static_cast<emu::u16>(box[i]);
    if (i + 1 < rank) made.strides[i] = strides[i];
  }
  std::memset(map, 0, 128);
  std::memcpy(map, &made, sizeof made);
  return kCudaSuccess;
}

}  // extern "C"
