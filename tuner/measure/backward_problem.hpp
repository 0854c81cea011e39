// One problem of the backward pass in device memory, and what a kernel makes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/reference/backward.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune {

// Row-major: [b, h or h_kv, sequence, dim]; tensors by slot, empty where they have no `grad`.
struct Gradients {
  std::vector<double> dq, dk, dv;
  std::vector<std::vector<double>> tensors;
};

// The first element that errs by more than it may; empty: there is none.
std::string wrong_gradient(const AttentionSpec& spec, const Gradients& gradients,
                           const BackwardOracle& oracle);

// Contiguous in the spec's layout. Device and spec must outlive it. Not thread-safe.
class BackwardProblem {
 public:
  // O and LSE of `problem` are what `forward` makes of it. dO and dLSE are drawn by `seed`; in rows
  // without live keys they are NaN, which must not matter.
  static Result<std::unique_ptr<BackwardProblem>> make(Device& device, const AttentionSpec& spec,
                                                       const HostProblem& problem,
                                                       const LoadedKernel& forward,
                                                       std::uint64_t seed);
  const OutputGradients& output_gradients() const { return output_gradients_; }

  // Launches on outputs and workspace filled with NaN, waits, and brings the gradients back.
  Result<Gradients> run(const LoadedKernel& backward);
  // Enqueues a launch; the workspace is kept and grows as kernels need.
  Status launch(const LoadedKernel& backward, StreamHandle stream);

 private:
  // A matrix of the problem: [b, heads, seq, dim] on the host.
  struct Matrix {
    std::int64_t heads, seq;
    int dim;
    att::Strides strides;
    DeviceBuffer buffer;
  };
  BackwardProblem(Device& device, const AttentionSpec& spec, const ProblemShape& shape)
      : device_(device), spec_(spec), shape_(shape) {}
  Result<Matrix> make_matrix(std::int64_t heads, std::int64_t seq, int dim);
  template <typename F>
  void for_each_element(const Matrix& matrix, const F& f) const;
  Status upload(const Matrix& matrix, const std::vector<double>& values);
  Result<std::vector<double>> download(const Matrix& matrix);

  Device& device_;
  const AttentionSpec& spec_;
  const ProblemShape shape_;
  std::unique_ptr<DeviceProblem> forward_;
  OutputGradients output_gradients_;
  att::LaunchParams params_{};
  Matrix d_o_, d_q_, d_k_, d_v_;
  DeviceBuffer d_lse_, workspace_;
  std::vector<DeviceBuffer> d_tensors_;  // by slot
};

}  // namespace attune
