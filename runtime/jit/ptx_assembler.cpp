#include "runtime/jit/ptx_assembler.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "runtime/support/dynamic_library.hpp"

extern "C" {
typedef struct CUlinkState_st* CUlinkState;
typedef struct CUctx_st* CUcontext;
}

namespace attune {
namespace {

constexpr const char* kInstallHint = "install the NVIDIA driver, 525 or newer (CUDA 12.0)";
constexpr std::size_t kLogBytes = 64 * 1024;

// CUjit_option, CUjitInputType and CUjit_target of NVIDIA's cuda.h.
constexpr int kInfoLogBuffer = 3, kInfoLogBytes = 4, kErrorLogBuffer = 5, kErrorLogBytes = 6;
constexpr int kTarget = 9, kLogVerbose = 12;
constexpr int kInputPtx = 1;
constexpr std::uintptr_t kArchitectureSpecific = 0x10000;  // the `a` of sm_90a

struct LinkApi {
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
};

bool bind_api(const DynamicLibrary& library, LinkApi& api) {
  return library.bind(api.init, "cuInit") &&
         library.bind(api.driver_get_version, "cuDriverGetVersion") &&
         library.bind(api.device_get, "cuDeviceGet") &&
         library.bind(api.primary_context_retain, "cuDevicePrimaryCtxRetain") &&
         library.bind(api.context_push_current, "cuCtxPushCurrent_v2") &&
         library.bind(api.context_pop_current, "cuCtxPopCurrent_v2") &&
         library.bind(api.link_create, "cuLinkCreate_v2") &&
         library.bind(api.link_add_data, "cuLinkAddData_v2") &&
         library.bind(api.link_complete, "cuLinkComplete") &&
         library.bind(api.link_destroy, "cuLinkDestroy");
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

class DriverAssembler final : public PtxAssembler {
 public:
  DriverAssembler(const LinkApi& api, CUcontext context, int version)
      : api_(api), context_(context), version_(version) {}

  std::string identity() const override {
    return fmt::format("driver {}.{}", version_ / 1000, version_ % 1000 / 10);
  }

  Result<AssembledPtx> assemble(std::string_view ptx, Target target) const override {
    if (api_.context_push_current(context_) != 0) {
      return Error{.id = "ptx-assembly", .message = "the CUDA context could not be made current"};
    }
    auto assembled = link(std::string(ptx), target);
    CUcontext popped = nullptr;
    api_.context_pop_current(&popped);
    return assembled;
  }

 private:
  // `ptx` ends in a zero byte, as the driver wants it.
  Result<AssembledPtx> link(std::string ptx, Target target) const {
    std::string info(kLogBytes, '\0');
    std::string errors(kLogBytes, '\0');
    int options[] = {kInfoLogBuffer, kInfoLogBytes, kErrorLogBuffer,
                     kErrorLogBytes, kLogVerbose,   kTarget};
    void* values[] = {info.data(),         as_value(kLogBytes), errors.data(),
                      as_value(kLogBytes), as_value(1),         as_value(jit_target(target))};
    CUlinkState state = nullptr;
    if (api_.link_create(std::size(options), options, values, &state) != 0) {
      return Error{.id = "ptx-assembly", .message = "the driver's linker did not start"};
    }
    void* cubin = nullptr;
    std::size_t bytes = 0;
    int result = api_.link_add_data(state, kInputPtx, ptx.data(), ptx.size() + 1, "kernel.ptx", 0,
                                    nullptr, nullptr);
    if (result == 0) result = api_.link_complete(state, &cubin, &bytes);
    AssembledPtx assembled{.cubin = {}, .log = info.c_str()};
    if (result == 0) {
      const auto* first = static_cast<const std::uint8_t*>(cubin);
      assembled.cubin.assign(first, first + bytes);
    }
    api_.link_destroy(state);  // owns the cubin
    if (result == 0) return assembled;
    return Error{.id = "ptx-assembly",
                 .message = fmt::format("the driver could not assemble the PTX (error {})", result),
                 .detail = errors.c_str()};
  }

  const LinkApi api_;
  const CUcontext context_;
  const int version_;
};

}  // namespace

Result<std::unique_ptr<PtxAssembler>> PtxAssembler::open() {
  ATT_TRY(const DynamicLibrary library,
          DynamicLibrary::open({"libcuda.so.1", "libcuda.so"}, "cuda-missing", "the CUDA driver",
                               kInstallHint));
  LinkApi api{};
  int version = 0;
  int device = 0;
  CUcontext context = nullptr;
  if (!bind_api(library, api) || api.init(0) != 0 || api.driver_get_version(&version) != 0 ||
      api.device_get(&device, 0) != 0 || api.primary_context_retain(&context, device) != 0) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "cuda-missing",
                 .message = "the CUDA driver offers no GPU to assemble PTX for",
                 .hint = kInstallHint};
  }
  return std::unique_ptr<PtxAssembler>(std::make_unique<DriverAssembler>(api, context, version));
}

}  // namespace attune
