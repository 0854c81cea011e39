// A host problem's buffers on a device, for whoever runs a kernel to see whether or how fast it
// works: the command, the tuner, the tests. A host application brings its own memory and does not
// need this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

// Inputs are contiguous in the spec's layout. Every buffer ends in a canary. One thread at a time.
class DeviceProblem {
 public:
  // Copies the inputs; the outputs hold NaN. `device` must outlive the result.
  static Result<std::unique_ptr<DeviceProblem>> upload(Device& device, const AttentionSpec& spec,
                                                       const HostProblem& problem);
  ~DeviceProblem();
  DeviceProblem(const DeviceProblem&) = delete;
  DeviceProblem& operator=(const DeviceProblem&) = delete;

  const att::ForwardParams& params() const { return params_; }
  const ProblemShape& shape() const { return shape_; }

  // Makes sure that the workspace suffices for `kernel`; launch() does not allocate then.
  Status prepare(const LoadedKernel& kernel);
  Status launch(const LoadedKernel& kernel, StreamHandle stream);

  // Fills the outputs with NaN again, so that an element a kernel leaves out shows.
  Status poison();
  // After the launch was synchronised: the rows' outputs; kFailed "canary" when a kernel wrote
  // behind a buffer.
  Result<HostOutput> read(const std::vector<Row>& rows);

 private:
  struct Buffer {
    void* data = nullptr;
    std::size_t bytes = 0;  // without the canary
  };

  DeviceProblem(Device& device, const AttentionSpec& spec, const ProblemShape& shape);
  Result<void*> add(std::size_t bytes, const void* from);
  Status check_canaries();

  Device& device_;
  ProblemShape shape_;
  DType dtype_;
  int head_dim_v_;
  std::vector<Buffer> buffers_;
  std::size_t o_buffer_ = 0, lse_buffer_ = 0;
  Buffer workspace_;
  att::ForwardParams params_ = {};
};

}  // namespace attune
