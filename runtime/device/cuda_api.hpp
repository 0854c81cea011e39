// The part of the CUDA driver's C interface that Attune calls, so that no CUDA toolkit is needed to
// build and no driver to start. Types and values are those of NVIDIA's cuda.h; functions are bound
// to the symbol versions named in cuda_api.cpp. Needs a driver of CUDA 12.0 or newer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "generator/support/result.hpp"

extern "C" {
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUlib_st* CUlibrary;
typedef struct CUkern_st* CUkernel;
typedef struct CUfunc_st* CUfunction;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;

typedef struct CUlaunchAttribute_st {
  int id;
  char pad[8 - sizeof(int)];
  union {
    struct {
      unsigned int x, y, z;
    } cluster_dim;
    int programmatic_stream_serialization;
    char size[64];
  } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig_st {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned int numAttrs;
} CUlaunchConfig;
}

namespace attune {

constexpr CUresult kCudaSuccess = 0;
constexpr CUresult kCudaErrorInvalidValue = 1;
constexpr CUresult kCudaErrorNotInitialized = 3;
constexpr CUresult kCudaErrorNotSupported = 801;
constexpr CUresult kCudaErrorStreamCaptureImplicit = 906;

namespace cuda_attribute {      // CUdevice_attribute
constexpr int kClockRate = 13;  // kHz
constexpr int kProcessorCount = 16;
constexpr int kMemoryClockRate = 36;  // kHz
constexpr int kMemoryBusWidth = 37;   // bits
constexpr int kL2Bytes = 38;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;
constexpr int kSharedBytesPerProcessor = 81;
constexpr int kRegistersPerProcessor = 82;
constexpr int kSharedBytesPerBlockOptin = 97;
}  // namespace cuda_attribute
constexpr int kFunctionMaxDynamicSharedBytes = 8;    // CUfunction_attribute
constexpr int kFunctionNonPortableClusterSize = 14;  // CUfunction_attribute
constexpr int kStreamCaptureModeRelaxed = 2;         // CUstreamCaptureMode
constexpr int kStreamCaptureNone = 0;                // CUstreamCaptureStatus
constexpr int kLaunchClusterDimension = 4;           // CUlaunchAttributeID
constexpr int kLaunchOverlapsPrevious = 6;           // the same, programmatic stream serialization

namespace tensor_map {
constexpr int kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9, kUint8 = 0;  // CUtensorMapDataType
constexpr int kInterleaveNone = 0;
constexpr int kL2Promotion256Bytes = 3;
constexpr int kOutOfBoundsZero = 0;
}  // namespace tensor_map

struct CudaApi {
  CUresult (*init)(unsigned flags);
  CUresult (*get_error_name)(CUresult, const char**);
  CUresult (*get_error_string)(CUresult, const char**);
  CUresult (*driver_get_version)(int*);
  CUresult (*device_get_count)(int*);
  CUresult (*device_get)(CUdevice*, int ordinal);
  CUresult (*device_get_name)(char*, int length, CUdevice);
  CUresult (*device_get_attribute)(int*, int attribute, CUdevice);
  CUresult (*device_total_mem)(std::size_t*, CUdevice);
  CUresult (*device_get_pci_bus_id)(char*, int length, CUdevice);
  CUresult (*primary_context_retain)(CUcontext*, CUdevice);
  CUresult (*primary_context_release)(CUdevice);
  CUresult (*context_get_current)(CUcontext*);
  CUresult (*context_set_current)(CUcontext);
  CUresult (*context_push_current)(CUcontext);
  CUresult (*context_pop_current)(CUcontext*);
  CUresult (*context_get_device)(CUdevice*);
  CUresult (*context_synchronize)();
  CUresult (*thread_exchange_stream_capture_mode)(int* mode);
  CUresult (*library_load_data)(CUlibrary*, const void* code, void* jit_options, void** jit_values,
                                unsigned jit_count, void* options, void** values, unsigned count);
  CUresult (*library_unload)(CUlibrary);
  CUresult (*library_get_kernel)(CUkernel*, CUlibrary, const char* name);
  CUresult (*kernel_get_function)(CUfunction*, CUkernel);
  CUresult (*kernel_set_attribute)(int attribute, int value, CUkernel, CUdevice);
  CUresult (*launch_kernel)(const CUlaunchConfig*, CUfunction, void** parameters, void** extra);
  CUresult (*mem_alloc)(CUdeviceptr*, std::size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*memcpy_to_device)(CUdeviceptr, const void*, std::size_t);
  CUresult (*memcpy_to_host)(void*, CUdeviceptr, std::size_t);
  CUresult (*memcpy_to_host_async)(void*, CUdeviceptr, std::size_t, CUstream);
  CUresult (*stream_is_capturing)(CUstream, int* status);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*memset_bytes)(CUdeviceptr, unsigned char, std::size_t);
  CUresult (*memset_words_async)(CUdeviceptr, unsigned, std::size_t count, CUstream);
  CUresult (*event_create)(CUevent*, unsigned flags);
  CUresult (*event_destroy)(CUevent);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*event_synchronize)(CUevent);
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent, CUevent);
  CUresult (*tensor_map_encode_tiled)(void* map, int type, std::uint32_t rank, void* address,
                                      const std::uint64_t* dims, const std::uint64_t* strides,
                                      const std::uint32_t* box,
                                      const std::uint32_t* element_strides, int interleave,
                                      int swizzle, int l2_promotion, int fill);
};

inline CUdeviceptr device_address(const void* pointer) {
  return std::bit_cast<CUdeviceptr>(pointer);
}

// The driver, opened and initialised once a process. kUnavailable when there is none or no GPU
// answers.
Result<const CudaApi*> cuda_api();

inline constexpr std::string_view kCudaError = "cuda-error";
// OK, or kFailed kCudaError naming the call and the driver's words.
Status cuda_status(const CudaApi& api, CUresult result, const char* call);

}  // namespace attune
