// PTX -> cubin through the CUDA driver, which brings ptxas along: no toolkit is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune {

struct AssembledPtx {
  std::vector<std::uint8_t> cubin;  // empty: the PTX is what to load
  std::string log;                  // ptxas -v; empty where the driver's own cache answered
  // Of the loaded function, where the log is empty.
  int registers = 0;    // a thread
  int local_bytes = 0;  // stack and spills of a thread
  int static_shared_bytes = 0;
};

// The driver assembles whole programs only while it loads them, and hands no cubin out; its linker,
// which does, compiles as if other units might call the kernel, and so ignores setmaxnreg. PTX with
// that instruction therefore stays PTX: it is assembled here once to see that it can be, and the
// driver's cache on disk answers when it is loaded.
class PtxAssembler {
 public:
  // kUnavailable without a driver or a GPU, for the driver assembles in a context only.
  static Result<std::unique_ptr<PtxAssembler>> open();
  virtual ~PtxAssembler() = default;

  // "driver 13.0": the CUDA version whose ptxas it has.
  virtual std::string identity() const = 0;
  // `symbol` is the entry function whose registers and memory are reported, where the GPU here can
  // load the code. kFailed, the detail holding ptxas' words. Thread-safe.
  virtual Result<AssembledPtx> assemble(std::string_view ptx, const std::string& symbol,
                                        Target target) const = 0;
};

}  // namespace attune
