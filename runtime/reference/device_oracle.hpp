// The oracle on a GPU: any rows of shapes that are too large for the CPU's. It shares the
// generated functions of mask, score and sink with the kernels it judges (in fp32, through the
// special-function unit), which the CPU's does not.
#pragma once

#include <memory>
#include <vector>

#include "cache/store.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

class DeviceOracle {
 public:
  // Compiles templates/kernels/reference_forward.cuh for the spec, or takes its code from `store`,
  // which may be null. kUnsupported on a device that is no GPU. `device` must outlive the result.
  static Result<std::unique_ptr<DeviceOracle>> make(Device& device, Compiler& compiler,
                                                    const AttentionSpec& spec,
                                                    Store* store = nullptr);

  // The outputs of all rows, or of `rows`, for the inputs of `params`, which are on the device; its
  // o and lse are not touched. Allocates and synchronises. One thread at a time.
  Result<HostOutput> exact(const att::ForwardParams& params, const std::vector<Row>& rows = {}) {
    return run(*exact_, params, rows);
  }
  Result<HostOutput> plain(const att::ForwardParams& params, const std::vector<Row>& rows = {}) {
    return run(*plain_, params, rows);
  }

 private:
  DeviceOracle(Device& device, int head_dim_v) : device_(device), head_dim_v_(head_dim_v) {}
  Result<HostOutput> run(const LoadedKernel& kernel, att::ForwardParams params,
                         const std::vector<Row>& rows);

  Device& device_;
  const int head_dim_v_;
  std::unique_ptr<LoadedKernel> exact_, plain_;
};

}  // namespace attune
