// Generated source -> machine code. Two implementations: NVRTC (CUDA) and LLVM (NVPTX, and the
// CPU).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
// The module libattune_llvm.so: NVPTX targets and Target::kCpu.
Result<std::unique_ptr<Compiler>> open_llvm_compiler();
// The one of `family` (compiler_family) for the target; empty: the one that a target is built with,
// NVRTC for a GPU when it is there, else LLVM.
Result<std::unique_ptr<Compiler>> open_compiler(Target target, const std::string& family = "");

}  // namespace attune
