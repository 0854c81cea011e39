// What differs between the compilers that read the generated source: NVRTC, Clang as a CUDA
// compiler without its headers, and Clang as a C++ compiler for the CPU. Everything else in
// templates/ is written against the names below.
#pragma once

#if defined(__CUDACC_RTC__)  // NVRTC

#define ATT_FN static __device__ __forceinline__
#define ATT_MEMBER __device__ __forceinline__
#define ATT_KERNEL extern "C" __global__ void
#define ATT_GRID_CONSTANT const __grid_constant__
#define ATT_DEVICE_CODE 1

namespace att {
ATT_FN int thread_index() { return static_cast<int>(threadIdx.x); }
ATT_FN int block_index() { return static_cast<int>(blockIdx.x); }
ATT_FN int block_count() { return static_cast<int>(gridDim.x); }
ATT_FN void sync_threads() { __syncthreads(); }
ATT_FN bool sync_threads_or(bool value) { return __syncthreads_or(value) != 0; }
}  // namespace att

#elif defined(__CUDA__)  // Clang, -x cuda -nocudainc -nocudalib

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
// Functions count as host functions too, or none could stand in a constant; no host code is made.
#define ATT_FN static __attribute__((host)) __device__ __forceinline__
#define ATT_MEMBER __attribute__((host)) __device__ __forceinline__
#define ATT_KERNEL extern "C" __global__ void
#if __has_attribute(grid_constant)  // Clang 20
#define ATT_GRID_CONSTANT const __attribute__((grid_constant))
#else
#define ATT_GRID_CONSTANT const
#endif
#define ATT_DEVICE_CODE 1

namespace att {
ATT_FN int thread_index() { return static_cast<int>(__nvvm_read_ptx_sreg_tid_x()); }
ATT_FN int block_index() { return static_cast<int>(__nvvm_read_ptx_sreg_ctaid_x()); }
ATT_FN int block_count() { return static_cast<int>(__nvvm_read_ptx_sreg_nctaid_x()); }
ATT_FN void sync_threads() { __syncthreads(); }
ATT_FN bool sync_threads_or(bool value) { return __nvvm_bar0_or(value) != 0; }
}  // namespace att

#else  // the CPU

#define ATT_FN static inline
#define ATT_MEMBER inline
#define ATT_DEVICE_CODE 0

#endif

// The names of a recipe's kernels: ATT_KERNEL_NAME of the main one, and that with a suffix.
#define ATT_JOIN_(a, b) a##b
#define ATT_JOIN(a, b) ATT_JOIN_(a, b)

#if ATT_DEVICE_CODE
namespace att {

// x, but the compiler cannot tell: what follows from it is computed where it stands instead of
// being kept in registers from an earlier use. The kv loop has none to spare.
ATT_FN int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
ATT_FN unsigned opaque(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

ATT_FN int lane_index() { return opaque(thread_index()) & 31; }
ATT_FN int warp_index() { return opaque(thread_index()) >> 5; }

}  // namespace att
#endif
