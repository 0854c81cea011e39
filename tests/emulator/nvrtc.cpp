// NVRTC's functions that Attune calls. Kernels become shared objects of the host's compiler.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/jit/nvrtc_api.hpp"
#include "tests/emulator/image.hpp"
#include "tests/emulator/translator.hpp"

struct _nvrtcProgram {
  std::string source, log, image;
};

namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A folder that is gone at the end.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "attune_emulator_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

void run(const std::string& command, const fs::path& log) {
  const int status = std::system((command + " > " + log.string() + " 2>&1").c_str());
  if (status != 0) throw std::runtime_error(command + "\n" + contents(log).substr(0, 8000));
}

fs::path own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&own_folder), &info);
  return fs::canonical(info.dli_fname).parent_path();
}

// The value of `--name=value`.
std::string option(int count, const char* const* options, std::string_view name) {
  for (int i = 0; i < count; ++i) {
    const std::string_view each = options[i];
    if (each.starts_with(name)) return std::string(each.substr(name.size()));
  }
  return {};
}

// The code's bytes; `log` becomes what ptxas would say of it.
std::string compiled(const std::string& source, const std::string& arch, std::string* log) {
  const Folder folder;
  const fs::path& at = folder.path;
  std::ofstream(at / "kernel.cu") << source;
  const std::string digits = arch.substr(arch.find('_') + 1, 2);
  run(std::string(ATT_HOST_COMPILER) +
          " -E -P -x c++ -std=c++17 -D__CUDACC_RTC__ -D__CUDA_ARCH__=" + digits +
          "0 -D__device__= -D__forceinline__=inline -D__grid_constant__="
          " '-D__align__(n)=__attribute__((aligned(n)))' " +
          (at / "kernel.cu").string() + " -o " + (at / "kernel.i").string(),
      at / "log");
  const attune::emulator::Translation made = attune::emulator::translate(contents(at / "kernel.i"));
  std::ofstream(at / "kernel.cpp") << made.text;
  if (const char* keep = std::getenv("ATTUNE_EMULATOR_KEEP"); keep != nullptr) {
    fs::copy(at / "kernel.cpp", keep, fs::copy_options::overwrite_existing);
  }
  for (const std::string& kernel : made.kernels) {
    *log += "Compiling entry function '" + kernel + "'\nFunction properties for " + kernel +
            "\n 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "Used 96 registers\n";
  }
  run(std::string(ATT_HOST_COMPILER) + " " ATT_KERNEL_FLAGS " -shared " +
          (at / "kernel.cpp").string() + " -o " + (at / "kernel.so").string() + " " +
          (own_folder() / "libcuda.so.1").string(),
      at / "log");
  return contents(at / "kernel.so");
}

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == 0 ? "NVRTC_SUCCESS" : "the emulator could not compile it";
}
nvrtcResult nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0; }
nvrtcResult nvrtcGetNumSupportedArchs(int* count) { return *count = 2, 0; }
nvrtcResult nvrtcGetSupportedArchs(int* archs) { return archs[0] = 80, archs[1] = 90, 0; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int,
                               const char* const*, const char* const*) {
  return *program = new _nvrtcProgram{source, {}, {}}, 0;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  return *program = nullptr, 0;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  try {
    const std::string code =
        compiled(program->source, option(count, options, "--gpu-architecture="), &program->log);
    emu::ImageHead head{};
    std::memcpy(head.magic, emu::kImageMagic, sizeof head.magic);
    head.bytes = code.size();
    program->image = std::string(reinterpret_cast<const char*>(&head), sizeof head) + code;
    return 0;
  } catch (const std::exception& found) {
    program->log = found.what();
    return attune::kNvrtcErrorCompilation;
  }
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
  return *bytes = program->image.size(), 0;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  std::memcpy(cubin, program->image.data(), program->image.size());
  return 0;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
  return *bytes = program->log.size() + 1, 0;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}

}  // extern "C"
