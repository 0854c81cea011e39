// One attention problem in device memory: inputs, outputs, launch parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

// Frees itself. Not thread-safe.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> make(Device& device, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->free(data_);
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Times of several runs are compared, of one tuner that was interrupted or of many whose files are
// merged: what a mask reads must be the same for all of them.
inline constexpr std::uint64_t kTimedSeed = 1;

// Contiguous in the spec's layout. The device must outlive it. Not thread-safe.
class DeviceProblem {
 public:
  // The very numbers of `problem`; behind every output lies a canary.
  static Result<std::unique_ptr<DeviceProblem>> upload(Device& device, const AttentionSpec& spec,
                                                       const HostProblem& problem);
  // Numbers of the same kind for timing: a few MiB of normal values repeated, tensors and scalars
  // as random_problem() draws them.
  static Result<std::unique_ptr<DeviceProblem>> for_timing(Device& device,
                                                           const AttentionSpec& spec,
                                                           const ProblemShape& shape,
                                                           std::uint64_t seed);

  const att::LaunchParams& params() const { return params_; }
  // Launches on `stream`; the workspace is kept and grows as kernels need. Does not synchronise.
  Status launch(const LoadedKernel& kernel, StreamHandle stream);
  // Makes room for the kernel's workspace, so that launch() allocates nothing.
  Status prepare(const LoadedKernel& kernel);
  // Fills outputs with NaN.
  Status poison();
  // After synchronising: fails with "candidate-miscompute" when a canary died.
  Status check_canaries();
  // Outputs of `rows`, after check_canaries().
  Result<HostOutput> download(const std::vector<Row>& rows);

 private:
  DeviceProblem(Device& device, const AttentionSpec& spec, const ProblemShape& shape)
      : device_(device), spec_(spec), shape_(shape) {}
  Status make_outputs();
  Status add_input(const void** pointer, std::span<const std::byte> bytes);
  Status add_pattern(const void** pointer, std::size_t bytes, std::span<const std::byte> pattern);
  Status add_tensors(const HostProblem& problem);
  void set_params(const HostProblem& problem);

  Device& device_;
  const AttentionSpec& spec_;
  const ProblemShape shape_;
  att::LaunchParams params_{};
  std::vector<DeviceBuffer> inputs_;
  DeviceBuffer o_, lse_, workspace_;
};

}  // namespace attune
