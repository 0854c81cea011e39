// Generated source -> machine code. Two implementations: NVRTC (CUDA) and LLVM (NVPTX, and the
// CPU), of which LLVM gives ptxas the instructions in one of two orders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/plan.hpp"
#include "generator/support/result.hpp"

namespace attune {

struct CompiledKernel {
  std::vector<std::uint8_t> image;  // cubin, or a relocatable object for the CPU
  int registers = 0;                // a thread; 0 where it has no meaning
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;
  double compile_seconds = 0;
  std::string log;
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  // "nvrtc 13.0.88"; part of the build key.
  virtual std::string identity() const = 0;
  virtual bool supports(Target target) const = 0;
  // `source` as emit() made it. A failure's detail holds the command, the log and the numbered
  // source. Thread-safe.
  virtual Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                         Target target) = 0;
};

// Opened at run time; kUnavailable, naming what to install, when it is not there.
Result<std::unique_ptr<Compiler>> open_nvrtc_compiler();
// The module libattune_llvm.so: NVPTX targets and, in the first order, Target::kCpu. Instructions
// are in the order of the source or of need, or LLVM's list scheduler orders them. Neither suits
// every kernel, so these are compilers of their own, and the tuner finds out (docs/llvm.md).
enum class LlvmOrder { kGiven, kListed };
Result<std::unique_ptr<Compiler>> open_llvm_compiler(LlvmOrder order = LlvmOrder::kGiven);

// What users call the compilers, and the first word of their identities (compiler_family).
struct CompilerName {
  std::string_view name, family;
};
inline constexpr CompilerName kCompilers[] = {
    {"nvrtc", "nvrtc"}, {"llvm", "clang"}, {"llvm-list", "clang-list"}};
// The one of kCompilers that `name` is.
Result<std::unique_ptr<Compiler>> open_named_compiler(const std::string& name);
// The name of the one that `compiler` is.
std::string compiler_name(const Compiler& compiler);

// The one of `family` (compiler_family) for the target; empty: the one that a target is built with,
// NVRTC for a GPU when it is there, else LLVM.
Result<std::unique_ptr<Compiler>> open_compiler(Target target, const std::string& family = "");

}  // namespace attune
