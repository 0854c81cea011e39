// The device, the compilers and the cache a command works with, each opened when first asked for.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/overlay.hpp"
#include "cache/store.hpp"
#include "cli/options.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune::cli {

class Workbench {
 public:
  explicit Workbench(const Options& options) : options_(options) {}

  // --device, else the first GPU, else the CPU.
  Result<Device*> device();
  // --compiler, else the one of `family` (compiler_family) when it is here, else NVRTC for a GPU
  // target when it is here, else LLVM.
  Result<Compiler*> compiler(Target target, const std::string& family = "");
  // --compiler (`llvm` in both its orders), else all that are here and build for the target, NVRTC
  // first. Never empty.
  Result<std::vector<Compiler*>> compilers(Target target);
  // What a runtime asks: the cache file, behind it those of $ATTUNE_SYSTEM_CACHE. Null with a
  // warning when there is none: everything works without, only slower.
  Store* store();
  // The cache file alone, for commands that fill it.
  Result<Store*> required_store();
  // What the cost model plans for: the open device when `target` is its, else the published part's
  // facts.
  DeviceFacts facts(Target target);
  // The target of the device that is here, without a warning when there is none: then sm_90a.
  Target local_target();

 private:
  // Of kCompilers.
  Result<Compiler*> named_compiler(const std::string& name, Target target);

  const Options& options_;
  std::unique_ptr<Device> device_;
  std::map<std::string, std::unique_ptr<Compiler>> compilers_;  // by name
  std::unique_ptr<Store> store_;
  std::unique_ptr<Overlay> overlay_;
  bool store_tried_ = false;
};

// "target-not-here" (kUnavailable) when the spec names targets and the device's is none of them.
Status check_target(const AttentionSpec& spec, const Device& device);

// The path --cache names, or the user's default; empty for "none".
std::string cache_path(const Options& options);

}  // namespace attune::cli
