#include "runtime/jit/llvm_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "generator/support/hash.hpp"
#include "runtime/support/dynamic_library.hpp"

namespace attune {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libattune_llvm.so";
constexpr const char* kInstallModuleHint =
    "build Attune with LLVM 19 or newer installed (llvm-19-dev, libclang-19-dev), or name the "
    "module "
    "in ATTUNE_LLVM_MODULE (path of libattune_llvm.so)";

// build/release/tests/unit/llvm is as deep as a binary of a build tree lies.
constexpr int kDirectoriesAbove = 4;

void add_if_there(std::vector<std::string>& names, const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) names.push_back(path.string());
}

std::vector<std::string> module_names() {
  if (const char* chosen = std::getenv("ATTUNE_LLVM_MODULE");
      chosen != nullptr && *chosen != '\0') {
    return {chosen};
  }
  std::vector<std::string> names;
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&open_llvm_module), &self) != 0 &&
      self.dli_fname != nullptr) {
    add_if_there(names, fs::path(self.dli_fname).parent_path() / kModule);
  }
  std::error_code failed;
  fs::path directory = fs::read_symlink("/proc/self/exe", failed).parent_path();
  if (!failed) {
    add_if_there(names, directory / kModule);
    for (int above = 0; above <= kDirectoriesAbove && directory.has_relative_path(); ++above) {
      add_if_there(names, directory / "lib" / kModule);
      directory = directory.parent_path();
    }
  }
  names.push_back(kModule);  // by the loader's own path, which a static host was linked with
  add_if_there(names, fs::path(ATTUNE_INSTALL_LIBDIR) / kModule);
  return names;
}

}  // namespace

Result<const AttLlvmApi*> open_llvm_module() {
  ATT_TRY(const DynamicLibrary library,
          DynamicLibrary::open(module_names(), "llvm-missing",
                               "the LLVM module (libattune_llvm.so)", kInstallModuleHint));
  std::remove_pointer_t<AttLlvmEntryPoint>* entry_point = nullptr;
  if (!library.bind(entry_point, ATT_LLVM_ENTRY_POINT)) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "llvm-module-version",
                 .message = fmt::format("{} is no LLVM module of Attune", library.name()),
                 .hint = kInstallModuleHint};
  }
  const AttLlvmApi* api = entry_point();
  if (api->abi_version != ATT_LLVM_ABI_VERSION) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "llvm-module-version",
                 .message = fmt::format("{} has interface {}, this Attune needs {}", library.name(),
                                        api->abi_version, ATT_LLVM_ABI_VERSION),
                 .hint = "use the module that was built with this Attune"};
  }
  return api;
}

std::string llvm_identity(const AttLlvmApi& api,
                          std::span<const std::vector<std::string>> arguments,
                          std::string_view family) {
  std::string text = api.revision;
  for (const std::vector<std::string>& of_a_target : arguments) {
    text += fmt::format("\n{}", fmt::join(of_a_target, "\t"));
  }
  return fmt::format("{} {} ({})", family, api.version, hash128_hex(text).substr(0, 8));
}

}  // namespace attune
