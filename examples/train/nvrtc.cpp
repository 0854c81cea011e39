#include "nvrtc.hpp"

#include <cstdlib>
#include <utility>
#include <vector>

#include "opened_library.hpp"

namespace train {
namespace {

// What the example calls of NVRTC's C interface (NVIDIA's nvrtc.h); results are nvrtcResult.
struct Nvrtc {
  const char* (*get_error_string)(int result);
  int (*create_program)(void** program, const char* source, const char* name, int headers,
                        const char* const* texts, const char* const* names);
  int (*destroy_program)(void** program);
  int (*compile_program)(void* program, int count, const char* const* options);
  int (*get_cubin_size)(void* program, std::size_t* bytes);
  int (*get_cubin)(void* program, char*);
  int (*get_log_size)(void* program, std::size_t* bytes);
  int (*get_log)(void* program, char*);
};

Nvrtc open_nvrtc() {
  const char* chosen = std::getenv("ATTUNE_NVRTC");
  const OpenedLibrary library(chosen != nullptr && *chosen != '\0'
                                  ? std::vector<std::string>{chosen}
                                  : cuda_library_names("libnvrtc"));
  if (!library.is_open()) {
    throw Error(Exit::kNothingToRunOn,
                "the kernels of a GPU need NVRTC 12 or newer, which could not be opened; "
                "ATTUNE_NVRTC names its libnvrtc.so");
  }
  Nvrtc nvrtc{};
  library.bind(nvrtc.get_error_string, "nvrtcGetErrorString");
  library.bind(nvrtc.create_program, "nvrtcCreateProgram");
  library.bind(nvrtc.destroy_program, "nvrtcDestroyProgram");
  library.bind(nvrtc.compile_program, "nvrtcCompileProgram");
  library.bind(nvrtc.get_cubin_size, "nvrtcGetCUBINSize");
  library.bind(nvrtc.get_cubin, "nvrtcGetCUBIN");
  library.bind(nvrtc.get_log_size, "nvrtcGetProgramLogSize");
  library.bind(nvrtc.get_log, "nvrtcGetProgramLog");
  return nvrtc;
}

class Program {
 public:
  explicit Program(const std::string& source) : nvrtc_(open_nvrtc()) {
    check(nvrtc_.create_program(&program_, source.c_str(), "kernels.cu", 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::string compile(const std::string& target) {
    const std::string architecture = "--gpu-architecture=" + target;
    const char* const options[] = {architecture.c_str(), "-std=c++17"};
    if (const int result = nvrtc_.compile_program(program_, 2, options); result != 0) {
      throw Error(Exit::kFailed, "NVRTC refuses kernels.cu for " + target + ": " +
                                     nvrtc_.get_error_string(result) + "\n" + log());
    }
    std::size_t bytes = 0;
    check(nvrtc_.get_cubin_size(program_, &bytes), "nvrtcGetCUBINSize");
    std::string image(bytes, '\0');
    check(nvrtc_.get_cubin(program_, image.data()), "nvrtcGetCUBIN");
    return image;
  }

 private:
  void check(int result, const char* call) const {
    if (result == 0) return;
    throw Error(Exit::kFailed, std::string(call) + ": " + nvrtc_.get_error_string(result));
  }
  std::string log() const {
    std::size_t bytes = 0;
    if (nvrtc_.get_log_size(program_, &bytes) != 0 || bytes == 0) return {};
    std::string text(bytes, '\0');
    if (nvrtc_.get_log(program_, text.data()) != 0) return {};
    text.resize(bytes - 1);  // the terminator is counted
    return text;
  }

  Nvrtc nvrtc_;
  void* program_ = nullptr;
};

}  // namespace

std::string compile_cuda(const std::string& source, const std::string& target) {
  return Program(source).compile(target);
}

}  // namespace train
