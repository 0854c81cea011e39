// One attention problem in device memory: inputs, outputs, launch parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/reference/oracle.hpp"
#include "tuner/measure/given_launch.hpp"
#include "tuner/measure/kernel_workspace.hpp"
#include "tuner/measure/output_buffer.hpp"
#include "tuner/measure/pass_problems.hpp"

namespace attune {

// Times of several runs are compared, of one tuner that was interrupted or of many whose files are
// merged: what a mask reads must be the same for all of them.
inline constexpr std::uint64_t kTimedSeed = 1;

// Contiguous in the spec's layout. The device must outlive it. Not thread-safe.
class DeviceProblem final : public TimedProblem {
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
  // The very numbers of a host's launch, contiguous.
  static Result<std::unique_ptr<DeviceProblem>> of_launch(Device& device, const AttentionSpec& spec,
                                                          const GivenLaunch& launch);

  const att::LaunchParams& params() const { return params_; }
  Status prepare(const LoadedKernel& kernel) override { return workspace_.prepare(kernel); }
  Status launch(const LoadedKernel& kernel, StreamHandle stream) override {
    return workspace_.launch(kernel, params_, stream);
  }
  Status poison() override;
  const void* input() const override { return params_.q; }
  // After synchronising: fails with "candidate-miscompute" when a canary died.
  Status check_canaries();
  // Outputs of `rows`, after check_canaries().
  Result<HostOutput> download(const std::vector<Row>& rows);

 private:
  DeviceProblem(Device& device, const AttentionSpec& spec, const ProblemShape& shape)
      : device_(device),
        spec_(spec),
        shape_(shape),
        workspace_(device, shape, KernelWorkspace::Fresh::kAnything) {}
  Status make_outputs();
  Status add_input(const void** pointer, std::span<const std::byte> bytes);
  Status add_pattern(const void** pointer, std::size_t bytes, std::span<const std::byte> pattern);
  Status add_tensors(const HostProblem& problem);
  Status add_dropout_state(std::uint64_t seed, std::uint64_t offset);
  Status add_scales(const HostProblem& problem);
  Status add_sequences(const HostSequences& sequences, const HostPages& pages);
  void set_params(const HostProblem& problem);

  Device& device_;
  const AttentionSpec& spec_;
  const ProblemShape shape_;
  att::LaunchParams params_{};
  HostSequences sequences_;
  std::vector<DeviceBuffer> inputs_;
  OutputBuffer o_, lse_;
  KernelWorkspace workspace_;
};

}  // namespace attune
