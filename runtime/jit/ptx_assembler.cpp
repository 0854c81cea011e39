#include "runtime/jit/ptx_assembler.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "runtime/jit/ptxas_log.hpp"
#include "runtime/support/dynamic_library.hpp"

extern "C" {
typedef struct CUlinkState_st* CUlinkState;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUctx_st* CUcontext;
}

namespace attune {
namespace {

constexpr const char* kInstallDriverHint = "install the NVIDIA driver, 525 or newer (CUDA 12.0)";
constexpr std::size_t kLogBytes = 64 * 1024;

// CUjit_option, CUjitInputType and CUjit_target of NVIDIA's cuda.h.
constexpr int kInfoLogBuffer = 3, kInfoLogBytes = 4, kErrorLogBuffer = 5, kErrorLogBytes = 6;
constexpr int kTarget = 9, kLogVerbose = 12;
constexpr int kInputPtx = 1;
constexpr std::uintptr_t kArchitectureSpecific = 0x10000;  // the `a` of sm_90a

constexpr int kErrorNoBinaryForGpu = 209;                         // CUresult
constexpr int kSharedBytes = 1, kLocalBytes = 3, kRegisters = 4;  // CUfunction_attribute

struct DriverApi {
  int (*init)(unsigned flags);
  int (*driver_get_version)(int*);
  int (*device_get)(int*, int ordinal);
  int (*primary_context_retain)(CUcontext*, int device);
  int (*context_push_current)(CUcontext);
  int (*context_pop_current)(CUcontext*);
  int (*link_create)(unsigned count, int* options, void** values, CUlinkState*);
  int (*link_add_data)(CUlinkState, int type, void* data, std::size_t bytes, const char* name,
                       unsigned count, int* options, void** values);
  int (*link_complete)(CUlinkState, void** cubin, std::size_t* bytes);
  int (*link_destroy)(CUlinkState);
  int (*module_load_data)(CUmodule*, const void* image, unsigned count, int* options,
                          void** values);
  int (*module_unload)(CUmodule);
  int (*module_get_function)(CUfunction*, CUmodule, const char* name);
  int (*function_get_attribute)(int*, int attribute, CUfunction);
};

bool bind_api(const DynamicLibrary& library, DriverApi& api) {
  return library.bind(api.init, "cuInit") &&
         library.bind(api.driver_get_version, "cuDriverGetVersion") &&
         library.bind(api.device_get, "cuDeviceGet") &&
         library.bind(api.primary_context_retain, "cuDevicePrimaryCtxRetain") &&
         library.bind(api.context_push_current, "cuCtxPushCurrent_v2") &&
         library.bind(api.context_pop_current, "cuCtxPopCurrent_v2") &&
         library.bind(api.link_create, "cuLinkCreate_v2") &&
         library.bind(api.link_add_data, "cuLinkAddData_v2") &&
         library.bind(api.link_complete, "cuLinkComplete") &&
         library.bind(api.link_destroy, "cuLinkDestroy") &&
         library.bind(api.module_load_data, "cuModuleLoadDataEx") &&
         library.bind(api.module_unload, "cuModuleUnload") &&
         library.bind(api.module_get_function, "cuModuleGetFunction") &&
         library.bind(api.function_get_attribute, "cuFuncGetAttribute");
}

std::uintptr_t jit_target(Target target) {
  switch (target) {
    case Target::kSm80:
      return 80;
    case Target::kSm86:
      return 86;
    case Target::kSm89:
      return 89;
    case Target::kSm90a:
      return 90 + kArchitectureSpecific;
    case Target::kSm100:
      return 100;
    case Target::kSm120:
      return 120;
    case Target::kCpu:
      break;
  }
  return 0;
}

void* as_value(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

// The options that every compilation takes, and the logs they fill.
struct JitOptions {
  std::string info = std::string(kLogBytes, '\0');
  std::string errors = std::string(kLogBytes, '\0');
  int options[6] = {kInfoLogBuffer, kInfoLogBytes, kErrorLogBuffer,
                    kErrorLogBytes, kLogVerbose,   kTarget};
  void* values[6] = {info.data(),         as_value(kLogBytes), errors.data(),
                     as_value(kLogBytes), as_value(1),         nullptr};
  // A whole program takes the target of the GPU that loads it.
  unsigned count(bool with_target) const { return with_target ? 6 : 5; }
};

class DriverAssembler final : public PtxAssembler {
 public:
  DriverAssembler(const DriverApi& api, CUcontext context, int version)
      : api_(api), context_(context), version_(version) {}

  std::string identity() const override {
    return fmt::format("driver {}.{}", version_ / 1000, version_ % 1000 / 10);
  }

  Result<AssembledPtx> assemble(std::string_view ptx, const std::string& symbol,
                                Target target) const override {
    if (api_.context_push_current(context_) != 0) {
      return Error{.id = "ptx-assembly", .message = "the CUDA context could not be made current"};
    }
    const bool whole_program = ptx.find("setmaxnreg") != ptx.npos;
    auto assembled =
        whole_program ? load(std::string(ptx), symbol) : link(std::string(ptx), symbol, target);
    CUcontext popped = nullptr;
    api_.context_pop_current(&popped);
    return assembled;
  }

 private:
  static Error failure(int result, const JitOptions& jit) {
    return Error{.id = "ptx-assembly",
                 .message = fmt::format("the driver could not assemble the PTX (error {})", result),
                 .detail = jit.errors.c_str()};
  }

  // `ptx` ends in a zero byte, as the driver wants it.
  Result<AssembledPtx> link(std::string ptx, const std::string& symbol, Target target) const {
    JitOptions jit;
    jit.values[5] = as_value(jit_target(target));
    CUlinkState state = nullptr;
    if (api_.link_create(jit.count(true), jit.options, jit.values, &state) != 0) {
      return Error{.id = "ptx-assembly", .message = "the driver's linker did not start"};
    }
    void* cubin = nullptr;
    std::size_t bytes = 0;
    int result = api_.link_add_data(state, kInputPtx, ptx.data(), ptx.size() + 1, "kernel.ptx", 0,
                                    nullptr, nullptr);
    if (result == 0) result = api_.link_complete(state, &cubin, &bytes);
    AssembledPtx assembled{.log = jit.info.c_str()};
    if (result == 0) {
      const auto* first = static_cast<const std::uint8_t*>(cubin);
      assembled.cubin.assign(first, first + bytes);
    }
    api_.link_destroy(state);  // owns the cubin
    if (result != 0) return failure(result, jit);
    // Loading waits for every other load of the context: only where the log does not do.
    CUmodule module = nullptr;
    if (!parse_ptxas_log(assembled.log, symbol).found &&
        api_.module_load_data(&module, assembled.cubin.data(), 0, nullptr, nullptr) == 0) {
      report(module, symbol, assembled);
      api_.module_unload(module);
    }
    return assembled;
  }

  Result<AssembledPtx> load(std::string ptx, const std::string& symbol) const {
    JitOptions jit;
    CUmodule module = nullptr;
    const int result =
        api_.module_load_data(&module, ptx.c_str(), jit.count(false), jit.options, jit.values);
    if (result == kErrorNoBinaryForGpu) return AssembledPtx{};  // PTX of another GPU's
    if (result != 0) return failure(result, jit);
    AssembledPtx assembled{.log = jit.info.c_str()};
    report(module, symbol, assembled);
    api_.module_unload(module);
    return assembled;
  }

  void report(CUmodule module, const std::string& symbol, AssembledPtx& assembled) const {
    CUfunction function = nullptr;
    if (api_.module_get_function(&function, module, symbol.c_str()) != 0) return;
    api_.function_get_attribute(&assembled.registers, kRegisters, function);
    api_.function_get_attribute(&assembled.local_bytes, kLocalBytes, function);
    api_.function_get_attribute(&assembled.static_shared_bytes, kSharedBytes, function);
  }

  const DriverApi api_;
  const CUcontext context_;
  const int version_;
};

}  // namespace

Result<std::unique_ptr<PtxAssembler>> PtxAssembler::open() {
  ATT_TRY(const DynamicLibrary library,
          DynamicLibrary::open({"libcuda.so.1", "libcuda.so"}, "cuda-missing", "the CUDA driver",
                               kInstallDriverHint));
  DriverApi api{};
  int version = 0;
  int device = 0;
  CUcontext context = nullptr;
  if (!bind_api(library, api) || api.init(0) != 0 || api.driver_get_version(&version) != 0 ||
      api.device_get(&device, 0) != 0 || api.primary_context_retain(&context, device) != 0) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "cuda-missing",
                 .message = "the CUDA driver offers no GPU to assemble PTX for",
                 .hint = kInstallDriverHint};
  }
  return std::unique_ptr<PtxAssembler>(std::make_unique<DriverAssembler>(api, context, version));
}

}  // namespace attune
