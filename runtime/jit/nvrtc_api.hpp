// The part of NVRTC's C interface that Attune calls, so that no CUDA toolkit is needed to build.
// Names and values are those of NVIDIA's nvrtc.h, stable since CUDA 11.1.
#pragma once

#include <cstddef>

extern "C" {
typedef struct _nvrtcProgram* nvrtcProgram;
typedef int nvrtcResult;
}

namespace attune {

constexpr nvrtcResult kNvrtcSuccess = 0;
constexpr nvrtcResult kNvrtcErrorCompilation = 6;

struct NvrtcApi {
  const char* (*get_error_string)(nvrtcResult);
  nvrtcResult (*version)(int* major, int* minor);
  nvrtcResult (*get_num_supported_archs)(int* count);
  nvrtcResult (*get_supported_archs)(int* archs);
  nvrtcResult (*create_program)(nvrtcProgram*, const char* source, const char* name,
                                int header_count, const char* const* headers,
                                const char* const* include_names);
  nvrtcResult (*destroy_program)(nvrtcProgram*);
  nvrtcResult (*compile_program)(nvrtcProgram, int option_count, const char* const* options);
  nvrtcResult (*get_cubin_size)(nvrtcProgram, std::size_t*);
  nvrtcResult (*get_cubin)(nvrtcProgram, char*);
  nvrtcResult (*get_program_log_size)(nvrtcProgram, std::size_t*);
  nvrtcResult (*get_program_log)(nvrtcProgram, char*);
};

}  // namespace attune
