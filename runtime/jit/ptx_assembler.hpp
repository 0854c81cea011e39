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
  std::vector<std::uint8_t> cubin;
  std::string log;  // ptxas -v
};

class PtxAssembler {
 public:
  // kUnavailable without a driver or a GPU, for the driver assembles in a context only.
  static Result<std::unique_ptr<PtxAssembler>> open();
  virtual ~PtxAssembler() = default;

  // "driver 13.0": the CUDA version whose ptxas it has.
  virtual std::string identity() const = 0;
  // kFailed, the detail holding ptxas' words. Thread-safe.
  virtual Result<AssembledPtx> assemble(std::string_view ptx, Target target) const = 0;
};

}  // namespace attune
