#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "runtime/jit/compiler.hpp"
#include "runtime/jit/failure.hpp"
#include "runtime/jit/nvrtc_api.hpp"
#include "runtime/jit/ptxas_log.hpp"
#include "runtime/support/dynamic_library.hpp"

namespace attune {
namespace {

constexpr const char* kInstallNvrtcHint =
    "install NVRTC 12 or newer, or name it in ATTUNE_NVRTC (path of libnvrtc.so)";

std::vector<std::string> library_names() {
  if (const char* chosen = std::getenv("ATTUNE_NVRTC"); chosen != nullptr && *chosen != '\0') {
    return {chosen};
  }
  std::vector<std::string> names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable); root != nullptr && *root != '\0') {
      names.push_back(fmt::format("{}/lib64/libnvrtc.so", root));
    }
  }
  names.push_back("/usr/local/cuda/lib64/libnvrtc.so");
  return names;
}

Result<NvrtcApi> bind_api(const DynamicLibrary& library) {
  NvrtcApi api{};
  const bool complete = library.bind(api.get_error_string, "nvrtcGetErrorString") &&
                        library.bind(api.version, "nvrtcVersion") &&
                        library.bind(api.get_num_supported_archs, "nvrtcGetNumSupportedArchs") &&
                        library.bind(api.get_supported_archs, "nvrtcGetSupportedArchs") &&
                        library.bind(api.create_program, "nvrtcCreateProgram") &&
                        library.bind(api.destroy_program, "nvrtcDestroyProgram") &&
                        library.bind(api.compile_program, "nvrtcCompileProgram") &&
                        library.bind(api.get_cubin_size, "nvrtcGetCUBINSize") &&
                        library.bind(api.get_cubin, "nvrtcGetCUBIN") &&
                        library.bind(api.get_program_log_size, "nvrtcGetProgramLogSize") &&
                        library.bind(api.get_program_log, "nvrtcGetProgramLog");
  if (complete) return api;
  return Error{.kind = ErrorKind::kUnavailable,
               .id = "nvrtc-too-old",
               .message = fmt::format("{} lacks functions of NVRTC 11.2", library.name()),
               .hint = kInstallNvrtcHint};
}

// Owns an nvrtcProgram.
class Program {
 public:
  explicit Program(const NvrtcApi& api) : api_(api) {}
  ~Program() {
    if (handle != nullptr) api_.destroy_program(&handle);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::string log() const {
    std::size_t size = 0;
    if (api_.get_program_log_size(handle, &size) != kNvrtcSuccess || size <= 1) return {};
    std::string text(size, '\0');
    if (api_.get_program_log(handle, text.data()) != kNvrtcSuccess) return {};
    text.resize(size - 1);  // NVRTC counts the terminator
    return text;
  }

  nvrtcProgram handle = nullptr;

 private:
  const NvrtcApi& api_;
};

// Leaves out what no kernel names (textures, the runtime's functions), which would be declared each
// time. From 12.4 on.
constexpr const char* kMinimal = "--minimal";

// nvrtcVersion leaves out the last number. An error names it: a program that ends there takes half
// of what an empty one does, and neither does anything that the first kernel would do otherwise.
// All versions word that of an unknown name alike; of a type's arguments 12.1 tells nothing.
constexpr const char* kTellBuild =
    "#define NAME(build) build_##build\n#define EXPAND(macro) NAME(macro)\n"
    "EXPAND(__CUDACC_VER_BUILD__) told;\n";

// What NVRTC says of that program; empty where it does not know the option.
std::string told_build(const NvrtcApi& api, const char* option) {
  Program program(api);
  if (api.create_program(&program.handle, kTellBuild, "version.cu", 0, nullptr, nullptr) !=
          kNvrtcSuccess ||
      api.compile_program(program.handle, option == nullptr ? 0 : 1, &option) !=
          kNvrtcErrorCompilation) {
    return {};
  }
  return program.log();
}

// "13.0.88"; the release alone where `told` has no build.
std::string full_version(std::string_view told, int major, int minor) {
  const std::string release = fmt::format("{}.{}", major, minor);
  constexpr std::string_view kName = "\"build_";
  const std::size_t named = told.find(kName);
  if (named == std::string_view::npos) return release;
  const std::string_view build = told.substr(named + kName.size());
  return fmt::format("{}.{}", release, build.substr(0, build.find_first_not_of("0123456789")));
}

class NvrtcCompiler final : public Compiler {
 public:
  NvrtcCompiler(const NvrtcApi& api, std::string identity, std::vector<int> archs,
                std::vector<std::string> options)
      : api_(api),
        identity_(std::move(identity)),
        archs_(std::move(archs)),
        options_(std::move(options)) {}

  std::string identity() const override { return identity_; }

  bool supports(Target target) const override {
    const std::string name(to_string(target));  // "sm_90a"
    if (!name.starts_with("sm_")) return false;
    return std::ranges::find(archs_, std::atoi(name.c_str() + 3)) != archs_.end();
  }

  Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                 Target target) override {
    const auto start = std::chrono::steady_clock::now();
    // A real architecture: NVRTC runs ptxas itself and the driver has nothing left to compile.
    std::vector<std::string> options = {
        fmt::format("--gpu-architecture={}", to_string(target)),
        "-std=c++17",
        "--ptxas-options=-v",
    };
    options.insert(options.end(), options_.begin(), options_.end());
    const CompileAttempt attempt{
        .compiler = identity_,
        .command = fmt::format("nvrtc {} {}.cu", fmt::join(options, " "), symbol),
        .source = source};

    Program program(api_);
    const std::string file = symbol + ".cu";
    if (const nvrtcResult result =
            api_.create_program(&program.handle, source.c_str(), file.c_str(), 0, nullptr, nullptr);
        result != kNvrtcSuccess) {
      return compile_failure(attempt, api_.get_error_string(result), "");
    }
    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    const nvrtcResult result =
        api_.compile_program(program.handle, static_cast<int>(arguments.size()), arguments.data());

    CompiledKernel kernel;
    kernel.log = program.log();
    if (result != kNvrtcSuccess) {
      return compile_failure(attempt, api_.get_error_string(result), kernel.log);
    }
    std::size_t bytes = 0;
    if (api_.get_cubin_size(program.handle, &bytes) != kNvrtcSuccess || bytes == 0) {
      return compile_failure(attempt, "no cubin came out", kernel.log);
    }
    kernel.image.resize(bytes);
    if (api_.get_cubin(program.handle, reinterpret_cast<char*>(kernel.image.data())) !=
        kNvrtcSuccess) {
      return compile_failure(attempt, "the cubin could not be read", kernel.log);
    }

    const PtxasReport report = parse_ptxas_log(kernel.log, symbol);
    if (!report.found) {
      return compile_failure(attempt, fmt::format("no entry function `{}`", symbol), kernel.log);
    }
    if (!report.performance_loss.empty()) {
      return compile_failure(attempt, report.performance_loss, kernel.log);
    }
    kernel.registers = report.registers;
    kernel.spill_store_bytes = report.spill_store_bytes;
    kernel.spill_load_bytes = report.spill_load_bytes;
    kernel.stack_bytes = report.stack_bytes;
    kernel.static_shared_bytes = report.static_shared_bytes;
    kernel.compile_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return kernel;
  }

 private:
  const NvrtcApi api_;
  const std::string identity_;
  const std::vector<int> archs_;            // 80, 90, ...; 90 stands for sm_90a as well
  const std::vector<std::string> options_;  // that this NVRTC knows
};

}  // namespace

Result<std::unique_ptr<Compiler>> open_nvrtc_compiler() {
  ATT_TRY(const DynamicLibrary library,
          DynamicLibrary::open(library_names(), "nvrtc-missing", "NVRTC", kInstallNvrtcHint));
  ATT_TRY(const NvrtcApi api, bind_api(library));
  int major = 0;
  int minor = 0;
  int count = 0;
  if (api.version(&major, &minor) != kNvrtcSuccess ||
      api.get_num_supported_archs(&count) != kNvrtcSuccess) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "nvrtc-broken",
                 .message = fmt::format("{} does not tell its version", library.name()),
                 .hint = kInstallNvrtcHint};
  }
  std::vector<int> archs(static_cast<std::size_t>(std::max(count, 0)));
  api.get_supported_archs(archs.data());
  std::vector<std::string> options;
  // The cache hides ptxas' report, which is empty when it answers. NVRTC's manual, "Caching".
  if (major > 12 || (major == 12 && minor >= 9)) options.push_back("--no-cache");
  std::string told = told_build(api, kMinimal);
  if (told.empty()) {
    told = told_build(api, nullptr);
  } else {
    options.push_back(kMinimal);
  }
  return std::unique_ptr<Compiler>(std::make_unique<NvrtcCompiler>(
      api, "nvrtc " + full_version(told, major, minor), std::move(archs), std::move(options)));
}

}  // namespace attune
