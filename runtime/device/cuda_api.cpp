#include "runtime/device/cuda_api.hpp"

#include <fmt/format.h>

#include "runtime/support/dynamic_library.hpp"

namespace attune {
namespace {

constexpr const char* kInstallHint = "install the NVIDIA driver, 525 or newer (CUDA 12.0)";

Result<CudaApi> bind_api(const DynamicLibrary& library) {
  CudaApi api{};
  const char* missing = nullptr;
  const auto bind = [&](auto*& function, const char* name) {
    if (!library.bind(function, name)) missing = name;
  };
  bind(api.init, "cuInit");
  bind(api.get_error_name, "cuGetErrorName");
  bind(api.get_error_string, "cuGetErrorString");
  bind(api.driver_get_version, "cuDriverGetVersion");
  bind(api.device_get_count, "cuDeviceGetCount");
  bind(api.device_get, "cuDeviceGet");
  bind(api.device_get_name, "cuDeviceGetName");
  bind(api.device_get_attribute, "cuDeviceGetAttribute");
  bind(api.device_total_mem, "cuDeviceTotalMem_v2");
  bind(api.device_get_pci_bus_id, "cuDeviceGetPCIBusId");
  bind(api.primary_context_retain, "cuDevicePrimaryCtxRetain");
  bind(api.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  bind(api.context_get_current, "cuCtxGetCurrent");
  bind(api.context_set_current, "cuCtxSetCurrent");
  bind(api.context_push_current, "cuCtxPushCurrent_v2");
  bind(api.context_pop_current, "cuCtxPopCurrent_v2");
  bind(api.context_get_device, "cuCtxGetDevice");
  bind(api.context_synchronize, "cuCtxSynchronize");
  bind(api.thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode");
  bind(api.library_load_data, "cuLibraryLoadData");
  bind(api.library_unload, "cuLibraryUnload");
  bind(api.library_get_kernel, "cuLibraryGetKernel");
  bind(api.kernel_get_function, "cuKernelGetFunction");
  bind(api.kernel_set_attribute, "cuKernelSetAttribute");
  bind(api.launch_kernel, "cuLaunchKernelEx");
  bind(api.mem_alloc, "cuMemAlloc_v2");
  bind(api.mem_free, "cuMemFree_v2");
  bind(api.memcpy_to_device, "cuMemcpyHtoD_v2");
  bind(api.memcpy_to_host, "cuMemcpyDtoH_v2");
  bind(api.memcpy_to_host_async, "cuMemcpyDtoHAsync_v2");
  bind(api.stream_is_capturing, "cuStreamIsCapturing");
  bind(api.stream_synchronize, "cuStreamSynchronize");
  bind(api.memset_bytes, "cuMemsetD8_v2");
  bind(api.memset_words_async, "cuMemsetD32Async");
  bind(api.event_create, "cuEventCreate");
  bind(api.event_destroy, "cuEventDestroy_v2");
  bind(api.event_record, "cuEventRecord");
  bind(api.event_synchronize, "cuEventSynchronize");
  bind(api.event_elapsed_time, "cuEventElapsedTime");
  bind(api.tensor_map_encode_tiled, "cuTensorMapEncodeTiled");
  if (missing == nullptr) return api;
  return Error{.kind = ErrorKind::kUnavailable,
               .id = "cuda-driver-too-old",
               .message = fmt::format("{} has no {}", library.name(), missing),
               .hint = kInstallHint};
}

Result<CudaApi> open_api() {
  ATT_TRY(const DynamicLibrary library,
          DynamicLibrary::open({"libcuda.so.1", "libcuda.so"}, "cuda-driver-missing",
                               "the CUDA driver", kInstallHint));
  ATT_TRY(const CudaApi api, bind_api(library));
  if (const CUresult result = api.init(0); result != kCudaSuccess) {
    Error error = cuda_status(api, result, "cuInit").error();
    error.kind = ErrorKind::kUnavailable;
    error.id = "cuda-init-failed";
    return error;
  }
  return api;
}

}  // namespace

Result<const CudaApi*> cuda_api() {
  static const Result<CudaApi> opened = open_api();
  if (!opened.ok()) return opened.error();
  return &opened.value();
}

Status cuda_status(const CudaApi& api, CUresult result, const char* call) {
  if (result == kCudaSuccess) return ok_status();
  const char* name = nullptr;
  const char* text = nullptr;
  api.get_error_name(result, &name);
  api.get_error_string(result, &text);
  return Error{.id = std::string(kCudaError),
               .message = fmt::format("{}: {}: {}", call, name != nullptr ? name : "unknown error",
                                      text != nullptr ? text : std::to_string(result).c_str())};
}

}  // namespace attune
