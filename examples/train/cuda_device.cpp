#include "cuda_device.hpp"

#include <bit>
#include <cstdio>

namespace train {
namespace {

constexpr int kSuccess = 0, kOutOfMemory = 2;  // CUresult
// CUdevice_attribute
constexpr int kProcessorCount = 16, kComputeMajor = 75, kComputeMinor = 76;
constexpr unsigned kNonBlocking = 1;  // CUstream_flags: nothing waits for the default stream

std::uint64_t address(const void* data) { return std::bit_cast<std::uint64_t>(data); }

CudaDriver bind_driver(const OpenedLibrary& library) {
  CudaDriver driver{};
  library.bind(driver.init, "cuInit");
  library.bind(driver.get_error_name, "cuGetErrorName");
  library.bind(driver.get_error_string, "cuGetErrorString");
  library.bind(driver.device_get_count, "cuDeviceGetCount");
  library.bind(driver.device_get, "cuDeviceGet");
  library.bind(driver.device_get_name, "cuDeviceGetName");
  library.bind(driver.device_get_attribute, "cuDeviceGetAttribute");
  library.bind(driver.primary_context_retain, "cuDevicePrimaryCtxRetain");
  library.bind(driver.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  library.bind(driver.context_set_current, "cuCtxSetCurrent");
  library.bind(driver.stream_create, "cuStreamCreate");
  library.bind(driver.stream_destroy, "cuStreamDestroy_v2");
  library.bind(driver.stream_synchronize, "cuStreamSynchronize");
  library.bind(driver.module_load_data, "cuModuleLoadData");
  library.bind(driver.module_get_function, "cuModuleGetFunction");
  library.bind(driver.launch_kernel, "cuLaunchKernel");
  library.bind(driver.mem_alloc, "cuMemAlloc_v2");
  library.bind(driver.mem_free, "cuMemFree_v2");
  library.bind(driver.mem_get_info, "cuMemGetInfo_v2");
  library.bind(driver.memcpy_to_device, "cuMemcpyHtoDAsync_v2");
  library.bind(driver.memcpy_to_host, "cuMemcpyDtoHAsync_v2");
  library.bind(driver.memset_bytes, "cuMemsetD8Async");
  return driver;
}

}  // namespace

CudaDevice::CudaDevice(int ordinal) : library_({"libcuda.so.1", "libcuda.so"}) {
  const std::string device = "cuda:" + std::to_string(ordinal);
  if (!library_.is_open()) {
    throw Error(Exit::kNothingToRunOn, device + ": there is no NVIDIA driver (libcuda.so.1)");
  }
  driver_ = bind_driver(library_);
  int count = 0;
  if (const int result = driver_.init(0); result != kSuccess) {
    const char* text = nullptr;
    driver_.get_error_string(result, &text);
    throw Error(Exit::kNothingToRunOn, device + ": the NVIDIA driver finds no GPU: " +
                                           (text != nullptr ? text : "cuInit"));
  }
  check(driver_.device_get_count(&count), "cuDeviceGetCount");
  if (ordinal >= count) {
    throw Error(Exit::kNothingToRunOn,
                device + ": the number of GPUs here is " + std::to_string(count));
  }
  check(driver_.device_get(&device_, ordinal), "cuDeviceGet");
  char name[256] = {};
  check(driver_.device_get_name(name, sizeof name, device_), "cuDeviceGetName");
  name_ = name;
  const auto attribute = [&](int which) {
    int value = 0;
    check(driver_.device_get_attribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  };
  processors_ = static_cast<std::size_t>(attribute(kProcessorCount));
  target_ = "sm_" + std::to_string(10 * attribute(kComputeMajor) + attribute(kComputeMinor));
  void* context = nullptr;
  check(driver_.primary_context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
  try {
    check(driver_.context_set_current(context), "cuCtxSetCurrent");
    check(driver_.stream_create(&stream_, kNonBlocking), "cuStreamCreate");
  } catch (...) {
    driver_.primary_context_release(device_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  driver_.stream_synchronize(stream_);
  driver_.stream_destroy(stream_);
  driver_.primary_context_release(device_);
}

void CudaDevice::check(int result, const char* call) const {
  if (result == kSuccess) return;
  const char *name = nullptr, *text = nullptr;
  driver_.get_error_name(result, &name);
  driver_.get_error_string(result, &text);
  throw Error(Exit::kFailed, std::string(call) + ": " + (name != nullptr ? name : "") + ": " +
                                 (text != nullptr ? text : std::to_string(result)));
}

void* CudaDevice::allocate(std::size_t bytes) {
  if (bytes == 0) bytes = 1;
  std::uint64_t to = 0;
  const int result = driver_.mem_alloc(&to, bytes);
  if (result == kOutOfMemory) {
    std::size_t free = 0, total = 0;
    driver_.mem_get_info(&free, &total);
    char text[256];
    std::snprintf(
        text, sizeof text,
        "%s has no %.1f MiB: %.1f of its %.1f MiB are free; a smaller --batch or --length "
        "takes less",
        name_.c_str(), static_cast<double>(bytes) / 0x1p20, static_cast<double>(free) / 0x1p20,
        static_cast<double>(total) / 0x1p20);
    throw Error(Exit::kFailed, text);
  }
  check(result, "cuMemAlloc");
  void* data = std::bit_cast<void*>(to);
  zero(data, bytes);
  return data;
}

void CudaDevice::release(void* data) {
  driver_.stream_synchronize(stream_);  // which may still use it
  driver_.mem_free(address(data));
}

// The host's memory is pageable: the driver has copied it to its own when the call returns.
void CudaDevice::write(void* to, const void* host, std::size_t bytes) {
  check(driver_.memcpy_to_device(address(to), host, bytes, stream_), "cuMemcpyHtoDAsync");
}

void CudaDevice::read(void* host, const void* from, std::size_t bytes) {
  check(driver_.memcpy_to_host(host, address(from), bytes, stream_), "cuMemcpyDtoHAsync");
  check(driver_.stream_synchronize(stream_), "cuStreamSynchronize");
}

void CudaDevice::zero(void* data, std::size_t bytes) {
  check(driver_.memset_bytes(address(data), 0, bytes, stream_), "cuMemsetD8Async");
}

void CudaDevice::load(const std::string& image) {
  check(driver_.module_load_data(&module_, image.data()), "cuModuleLoadData");
}

void CudaDevice::launch_with(std::string_view kernel, const Grid& grid, unsigned threads,
                             void** arguments) {
  auto found = kernels_.find(kernel);
  if (found == kernels_.end()) {
    found = kernels_.emplace(kernel, nullptr).first;
    check(driver_.module_get_function(&found->second, module_, found->first.c_str()),
          found->first.c_str());
  }
  const auto of = [](std::size_t size) { return static_cast<unsigned>(size); };
  check(driver_.launch_kernel(found->second, of(grid.x), of(grid.y), of(grid.z), threads, 1, 1, 0,
                              stream_, arguments, nullptr),
        found->first.c_str());
}

}  // namespace train
