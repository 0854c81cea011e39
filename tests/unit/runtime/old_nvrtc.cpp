// An NVRTC 12.0 as far as Attune can tell: it knows neither --minimal nor --no-cache, and makes no
// code.
#include <cstddef>
#include <cstring>
#include <string_view>

namespace {
constexpr int kInvalidOption = 5;
constexpr int kErrorCompilation = 6;
constexpr std::string_view kLog = "error: identifier \"build_140\" is undefined\n";
// Whether a program is being read that has something wrong with it.
bool is_wrong = false;
int size_of_nothing(std::size_t* size) {
  *size = 0;
  return 0;
}
}  // namespace

extern "C" {
const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_INVALID_OPTION"; }
int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  *archs = 90;
  return 0;
}
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = &is_wrong;
  is_wrong = *source != '\0';
  return 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcCompileProgram(void*, int count, const char* const* options) {
  for (int i = 0; i < count; ++i) {
    const std::string_view option = options[i];
    if (option == "--minimal" || option == "--no-cache") return kInvalidOption;
  }
  return is_wrong ? kErrorCompilation : 0;
}
int nvrtcGetCUBINSize(void*, std::size_t* size) { return size_of_nothing(size); }
int nvrtcGetCUBIN(void*, char*) { return 0; }
int nvrtcGetProgramLogSize(void*, std::size_t* size) {
  *size = is_wrong ? kLog.size() + 1 : 0;
  return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, kLog.data(), kLog.size() + 1);
  return 0;
}
}
