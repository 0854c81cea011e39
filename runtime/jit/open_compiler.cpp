#include <fmt/format.h>

#include <algorithm>

#include "runtime/jit/compiler.hpp"

namespace attune {

Result<std::unique_ptr<Compiler>> open_named_compiler(const std::string& name) {
  if (name == "nvrtc") return open_nvrtc_compiler();
  return open_llvm_compiler(name == "llvm-list" ? LlvmOrder::kListed : LlvmOrder::kGiven);
}

std::string compiler_name(const Compiler& compiler) {
  const std::string identity = compiler.identity();
  const auto* const named = std::ranges::find(
      kCompilers, std::string_view(identity).substr(0, identity.find(' ')), &CompilerName::family);
  return named == std::end(kCompilers) ? identity : std::string(named->name);
}

Result<std::unique_ptr<Compiler>> open_compiler(Target target, const std::string& family) {
  Error missing{.kind = ErrorKind::kUnavailable,
                .id = "compiler-no-target",
                .message = fmt::format("no compiler here builds for {}", to_string(target)),
                .hint = "`attune devices` shows what is here and what is missing"};
  if (target != Target::kCpu && !family.starts_with("clang")) {
    auto nvrtc = open_nvrtc_compiler();
    if (nvrtc.ok() && (*nvrtc)->supports(target)) return nvrtc;
    if (!nvrtc.ok()) missing = nvrtc.error();  // the one to install for a GPU
  }
  if (family == "nvrtc") return missing;
  auto llvm = open_llvm_compiler(family == "clang-list" ? LlvmOrder::kListed : LlvmOrder::kGiven);
  if (llvm.ok() && (*llvm)->supports(target)) return llvm;
  if (!llvm.ok() && (target == Target::kCpu || family.starts_with("clang"))) missing = llvm.error();
  return missing;
}

}  // namespace attune
