// A GPU behind the CUDA driver: memory, a stream, code and its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "opened_library.hpp"
#include "shared.hpp"

namespace train {

// What the example calls of the driver's C interface (NVIDIA's cuda.h); results are CUresult.
struct CudaDriver {
  int (*init)(unsigned flags);
  int (*get_error_name)(int result, const char**);
  int (*get_error_string)(int result, const char**);
  int (*device_get_count)(int*);
  int (*device_get)(int* device, int ordinal);
  int (*device_get_name)(char*, int bytes, int device);
  int (*device_get_attribute)(int*, int attribute, int device);
  int (*primary_context_retain)(void** context, int device);
  int (*primary_context_release)(int device);
  int (*context_set_current)(void* context);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*module_load_data)(void** module, const void* image);
  int (*module_get_function)(void** function, void* module, const char* name);
  int (*launch_kernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       void* stream, void** parameters, void** extra);
  int (*mem_alloc)(std::uint64_t* address, std::size_t bytes);
  int (*mem_free)(std::uint64_t address);
  int (*mem_get_info)(std::size_t* free, std::size_t* total);
  int (*memcpy_to_device)(std::uint64_t to, const void* from, std::size_t bytes, void* stream);
  int (*memcpy_to_host)(void* to, std::uint64_t from, std::size_t bytes, void* stream);
  int (*memset_bytes)(std::uint64_t to, unsigned char value, std::size_t bytes, void* stream);
};

// Rounded up: the blocks that hold `count` of something, `by` in each.
inline std::size_t quotient(std::size_t count, std::size_t by) { return (count + by - 1) / by; }

// All work goes to one stream, in order; read() waits for what is before it, and nothing else
// does. What fails on the GPU is thrown by a later call. The device's primary context is current
// on the thread that made this, which is the one to use it.
class CudaDevice : public Memory {
 public:
  static constexpr unsigned kThreads = 256;  // of a block, in most kernels
  struct Grid {
    std::size_t x = 1, y = 1, z = 1;
  };

  // Throws Error: no driver, no such GPU.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const std::string& name() const { return name_; }      // "NVIDIA H200"
  const std::string& target() const { return target_; }  // "sm_90"
  std::size_t processors() const { return processors_; }
  void* stream() const { return stream_; }

  void* allocate(std::size_t bytes) override;
  void release(void* data) override;
  void write(void* to, const void* host, std::size_t bytes) override;
  void read(void* host, const void* from, std::size_t bytes) override;
  void zero(void* data, std::size_t bytes) override;

  // Machine code for target(). Once.
  void load(const std::string& image);
  // Enqueues a kernel of that code. The arguments' types are the kernel's parameters'.
  template <typename... Arguments>
  void launch(std::string_view kernel, const Grid& grid, unsigned threads,
              const Arguments&... arguments) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    launch_with(kernel, grid, threads, pointers);
  }

 private:
  void check(int result, const char* call) const;
  void launch_with(std::string_view kernel, const Grid& grid, unsigned threads, void** arguments);

  OpenedLibrary library_;
  CudaDriver driver_{};
  int device_ = 0;
  std::string name_, target_;
  std::size_t processors_ = 0;
  void* stream_ = nullptr;
  void* module_ = nullptr;
  std::map<std::string, void*, std::less<>> kernels_;
};

}  // namespace train
