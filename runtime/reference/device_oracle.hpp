// The oracle on a GPU: any rows of shapes that are too large for the CPU's. It shares the
// generated functions of mask, score and sink with the kernels it judges (in fp32, through the
// special-function unit), which the CPU's does not.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

class DeviceOracle {
 public:
  // What it expects of some rows; on the device, 8 bytes an element of O.
  struct Answer {
    std::vector<Row> rows;
    std::shared_ptr<void> numbers, o, lse, worst;
  };

  // Compiles templates/kernels/reference_forward.cuh for the spec. A judge's code never comes from
  // a cache, whose kernels it judges. kUnsupported on a device that is no GPU, and of packed
  // sequences. `device` must outlive the result.
  static Result<std::unique_ptr<DeviceOracle>> make(Device& device, Compiler& compiler,
                                                    const AttentionSpec& spec);

  // For the inputs of `params`, which are on the device; its o and lse are not touched. These
  // allocate and synchronise. One thread at a time.
  Result<Answer> answer(const att::LaunchParams& params, std::vector<Row> rows);
  // Holds the o and lse of `params`, as a kernel left them, against the answer, on the device.
  Result<Verdict> judge(const Answer& answer, const att::LaunchParams& params);
  // An answer, for the CPU.
  Result<ForwardOracle> download(const Answer& answer);

 private:
  DeviceOracle(Device& device, const AttentionSpec& spec)
      : device_(device), dtype_(spec.dtype), width_(static_cast<std::size_t>(spec.head_dim_v)) {}
  // What is wrong with the row that is farthest off.
  Result<std::string> describe(const Answer& answer, std::size_t slot,
                               const att::LaunchParams& params);

  Device& device_;
  const DType dtype_;
  const std::size_t width_;
  std::unique_ptr<LoadedKernel> exact_, judge_;
};

}  // namespace attune
