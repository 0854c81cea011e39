#include "cli/workbench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/output.hpp"
#include "generator/support/suggest.hpp"

namespace attune::cli {
namespace {

Result<std::unique_ptr<Device>> open_device(const std::string& name) {
  if (name.empty()) {
    auto device = open_cuda_device(0);
    return device.ok() ? std::move(device) : open_cpu_device();
  }
  if (name == "cpu") return open_cpu_device();
  constexpr std::string_view kCuda = "cuda";
  if (name.starts_with(kCuda)) {
    std::string_view rest = std::string_view(name).substr(kCuda.size());
    int ordinal = 0;
    if (rest.empty()) return open_cuda_device(0);
    rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), ordinal);
    const bool number = error == std::errc() && end == rest.data() + rest.size() && ordinal >= 0;
    if (name[kCuda.size()] == ':' && number) return open_cuda_device(ordinal);
  }
  return Error{.kind = ErrorKind::kBadInput,
               .id = "device-unknown",
               .message = fmt::format("unknown device `{}`", name),
               .hint = "cuda:0, cuda:1, ... or cpu"};
}

}  // namespace

std::string cache_path(const Options& options) {
  if (options.cache == "none") return "";
  return options.cache.empty() ? default_store_path() : options.cache;
}

Status check_target(const AttentionSpec& spec, const Device& device) {
  const Target here = device.target();
  if (spec.targets.empty() || std::ranges::find(spec.targets, here) != spec.targets.end())
    return ok_status();
  std::vector<std::string_view> wanted;
  for (const Target target : spec.targets) wanted.push_back(to_string(target));
  return Error{.kind = ErrorKind::kUnavailable,
               .id = "target-not-here",
               .message = fmt::format("`{}` is for {}, and the device is `{}`", spec.name,
                                      join_names(wanted), to_string(here)),
               .hint = "--device names another device; the spec's `target` may name more"};
}

Result<Device*> Workbench::device() {
  if (device_ == nullptr) {
    ATT_TRY(device_, open_device(options_.device));
  }
  return device_.get();
}

Result<Compiler*> Workbench::named_compiler(const std::string& name, Target target) {
  auto& compiler = compilers_[name];
  if (compiler == nullptr) {
    ATT_TRY(compiler, open_named_compiler(name));
  }
  if (compiler->supports(target)) return compiler.get();
  return Error{
      .kind = ErrorKind::kUnavailable,
      .id = "compiler-no-target",
      .message = fmt::format("{} does not build for {}", compiler->identity(), to_string(target)),
      .hint = target == Target::kCpu ? "LLVM builds for the CPU: --compiler llvm"
              : name == "nvrtc"      ? "install a newer NVRTC"
                                     : "build Attune with a newer LLVM, or compile with NVRTC"};
}

Result<std::vector<Compiler*>> Workbench::compilers(Target target) {
  std::vector<std::string> names = {options_.compiler};
  const bool cpu = target == Target::kCpu;
  // NVRTC is the one to install for a GPU, so its absence is what to report.
  if (options_.compiler == "auto" && cpu) names = {"llvm"};
  if (options_.compiler == "auto" && !cpu) names = {"nvrtc", "llvm", "llvm-list"};
  if (options_.compiler == "llvm" && !cpu) names = {"llvm", "llvm-list"};
  std::vector<Compiler*> found;
  std::optional<Error> missing;
  for (const std::string& name : names) {
    auto compiler = named_compiler(name, target);
    if (compiler.ok()) {
      found.push_back(*compiler);
    } else if (!missing) {
      missing = std::move(compiler).error();
    }
  }
  if (found.empty()) return *std::move(missing);
  return found;
}

Result<Compiler*> Workbench::compiler(Target target, const std::string& family) {
  ATT_TRY(const std::vector<Compiler*> here, compilers(target));
  for (Compiler* compiler : here) {
    if (compiler_family(compiler->identity()) == family) return compiler;
  }
  return here.front();
}

Result<Store*> Workbench::required_store() {
  if (store_ == nullptr) {
    const std::string path = cache_path(options_);
    if (path.empty()) {
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "cache-none",
                   .message = "this command needs a cache file",
                   .hint = "--cache FILE"};
    }
    ATT_TRY(store_, open_writable_store(path));
  }
  return store_.get();
}

Store* Workbench::store() {
  if (overlay_ != nullptr) return overlay_.get();
  OverlayOptions files = default_overlay();
  files.user_file = cache_path(options_);
  if (!files.system_files.empty()) {
    overlay_ = Overlay::open(files);
    return overlay_.get();
  }
  if (store_ != nullptr || store_tried_ || files.user_file.empty()) return store_.get();
  store_tried_ = true;
  auto opened = open_store(files.user_file);
  if (!opened.ok()) {
    warn(fmt::format("going on without the cache: {}", opened.error().message));
    return nullptr;
  }
  store_ = *std::move(opened);
  return store_.get();
}

DeviceFacts Workbench::facts(Target target) {
  const auto here = device();
  if (here.ok() && here.value()->target() == target) return here.value()->facts();
  return device_facts(target);
}

Target Workbench::local_target() {
  const auto here = device();
  return here.ok() ? here.value()->target() : Target::kSm90a;
}

}  // namespace attune::cli
