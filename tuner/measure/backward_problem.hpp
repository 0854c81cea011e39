// One problem of the backward pass in device memory, and what a kernel makes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/reference/backward.hpp"
#include "tuner/measure/arrangement.hpp"
#include "tuner/measure/device_problem.hpp"
#include "tuner/measure/kernel_workspace.hpp"

namespace attune {

// Row-major: [b, h or h_kv, sequence, dim], of packed sequences without the b, over all tokens;
// tensors by slot, empty where they have no `grad`.
struct Gradients {
  std::vector<double> dq, dk, dv;
  std::vector<std::vector<double>> tensors;
  std::vector<double> sink;  // [b, h]; empty without one, and where no kernel makes it
};

// What judge() says of the first gradient that is wrong; empty: none is. Both have the same rows.
std::string wrong_gradient(const Gradients& gradients, const BackwardOracle& oracle);
// The same of the sample's rows of all of a problem's, as BackwardProblem::run() gives them. Of
// packed sequences, that a row was written which is no sequence's is wrong as well.
std::string wrong_gradient(const Gradients& all, const BackwardOracle& oracle,
                           const BackwardSample& sample, const AttentionSpec& spec,
                           const HostProblem& problem);

// Contiguous in the spec's layout. Device and spec must outlive it. Not thread-safe.
class BackwardProblem final : public TimedProblem {
 public:
  // O and LSE of `problem` are what `forward` makes of it. dO and dLSE are drawn by `seed`; in rows
  // without live keys they are NaN, which must not matter, and in those that are no sequence's, as
  // O and LSE are there.
  static Result<std::unique_ptr<BackwardProblem>> make(Device& device, const AttentionSpec& spec,
                                                       const HostProblem& problem,
                                                       const LoadedKernel& forward,
                                                       std::uint64_t seed);
  // For timing: the inputs of DeviceProblem::for_timing() and what `forward` makes of them, a dO of
  // repeated values, no dLSE, all gradients of tensors.
  static Result<std::unique_ptr<BackwardProblem>> for_timing(Device& device,
                                                             const AttentionSpec& spec,
                                                             const ProblemShape& shape,
                                                             const LoadedKernel& forward,
                                                             std::uint64_t seed);
  // The same of a host's launch, with its dO and dLSE; its O and LSE are what `forward` makes.
  static Result<std::unique_ptr<BackwardProblem>> of_launch(Device& device,
                                                            const AttentionSpec& spec,
                                                            const GivenLaunch& launch,
                                                            const LoadedKernel& forward);
  // Of make().
  const OutputGradients& output_gradients() const { return output_gradients_; }
  // Of a launch, but for the workspace.
  const att::LaunchParams& params() const { return params_; }
  // All rows of the O and LSE that a backward kernel is given, as they lie. Of make().
  Result<HostOutput> forward_output();

  Status prepare(const LoadedKernel& kernel) override { return workspace_.prepare(kernel); }
  Status launch(const LoadedKernel& kernel, StreamHandle stream) override {
    return workspace_.launch(kernel, params_, stream);
  }
  // The workspace too.
  Status poison() override;
  const void* input() const override { return params_.q; }
  // After a launch: waits. "candidate-miscompute" when something was written behind a gradient.
  Status check_canaries();
  // The same, and brings the gradients back.
  Result<Gradients> download();
  // Launches on outputs and workspace filled with NaN, and downloads.
  Result<Gradients> run(const LoadedKernel& backward);

 private:
  // A gradient of the problem.
  struct Matrix {
    Arrangement arrangement;
    OutputBuffer buffer;
  };
  BackwardProblem(Device& device, const AttentionSpec& spec, const ProblemShape& shape)
      : device_(device),
        spec_(spec),
        shape_(shape),
        workspace_(device, shape, KernelWorkspace::Fresh::kPoison) {}
  Status run_forward(std::unique_ptr<DeviceProblem> problem, const LoadedKernel& forward);
  Status make_gradients();
  Status draw_output_gradients(std::uint64_t seed);
  Result<Matrix> make_matrix(std::int64_t heads, std::int64_t seq, int dim);
  Status upload(const Matrix& matrix, const std::vector<double>& values);
  Result<std::vector<double>> download(const Matrix& matrix);
  Result<std::vector<double>> download_floats(const OutputBuffer& buffer);

  Device& device_;
  const AttentionSpec& spec_;
  const ProblemShape shape_;
  HostProblem places_;  // shape and sequences alone; of make()
  std::unique_ptr<DeviceProblem> forward_;
  OutputGradients output_gradients_;
  att::LaunchParams params_{};
  Matrix d_o_, d_q_, d_k_, d_v_;
  DeviceBuffer d_lse_;
  KernelWorkspace workspace_;
  std::vector<OutputBuffer> d_tensors_;  // by slot; empty where there is no `grad`
  OutputBuffer d_sink_;                  // empty likewise
};

}  // namespace attune
