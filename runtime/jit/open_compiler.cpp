#include <fmt/format.h>

#include "runtime/jit/compiler.hpp"

namespace attune {

Result<std::unique_ptr<Compiler>> open_compiler(Target target, const std::string& family) {
  Error missing{.kind = ErrorKind::kUnavailable,
                .id = "compiler-no-target",
                .message = fmt::format("no compiler here builds for {}", to_string(target)),
                .hint = "`attune devices` shows what is here and what is missing"};
  if (target != Target::kCpu && family != "clang") {
    auto nvrtc = open_nvrtc_compiler();
    if (nvrtc.ok() && (*nvrtc)->supports(target)) return nvrtc;
    if (!nvrtc.ok()) missing = nvrtc.error();  // the one to install for a GPU
  }
  if (family == "nvrtc") return missing;
  auto llvm = open_llvm_compiler();
  if (llvm.ok() && (*llvm)->supports(target)) return llvm;
  if (!llvm.ok() && (target == Target::kCpu || family == "clang")) missing = llvm.error();
  return missing;
}

}  // namespace attune
