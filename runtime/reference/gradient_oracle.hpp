// The oracle of gradients on a device: rows of dQ, dK and dV of shapes that are too large for the
// CPU's. It shares the generated functions of mask, score, its derivative and sink with the kernels
// it judges (in fp32, through a GPU's special-function unit), which the CPU's does not.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/reference/backward.hpp"

namespace att {
struct GradientReferenceParams;
}

namespace attune {

class GradientOracle {
 public:
  // What it expects of some rows; on the device, 8 bytes an element of each gradient.
  struct Answer {
    BackwardSample sample;
    std::shared_ptr<void> queries, keys, deltas, d_q, d_k, d_v, sink, worst;
    // By slot, of what is learned: only where the sample has all rows of dQ, and of tensors of at
    // most 2^20 elements; else empty.
    std::vector<Expected> tensors;
    Expected of_sink;
  };

  // Compiles templates/kernels/reference_backward.cuh for the spec: anew each time, because a
  // judge's code never comes from a cache, whose kernels it judges. kUnsupported of packed
  // sequences and of K and V with a dtype of their own. On the CPU too, for tests, where
  // oracle_backward() is the judge. `device` must outlive the result.
  static Result<std::unique_ptr<GradientOracle>> make(Device& device, Compiler& compiler,
                                                      const AttentionSpec& spec);

  // What the backward pass makes of the inputs, O, LSE, dO and dLSE of `params`, which are on the
  // device; its gradients are not touched, but those of learned tensors and of the sink are asked
  // for where its pointers are not null. These allocate and synchronise. One thread at a time.
  Result<Answer> answer(const att::LaunchParams& params, BackwardSample sample);
  // Holds the gradients of `params`, as a kernel left them, against the answer, on the device;
  // those of what is learned on the host.
  Result<Verdict> judge(const Answer& answer, const att::LaunchParams& params);
  // An answer, for the CPU.
  Result<BackwardOracle> download(const Answer& answer);

 private:
  GradientOracle(Device& device, const AttentionSpec& spec);
  Status load(const std::vector<std::uint8_t>& image);
  att::GradientReferenceParams params_of(const Answer& answer,
                                         const att::LaunchParams& params) const;
  // `count` rows.
  Status run(const LoadedFunction& function, const att::GradientReferenceParams& params,
             std::size_t count);
  Status sum_up_learned(att::GradientReferenceParams& own, Answer& answer);
  // The verdict on one row of a gradient, `at` elements behind `data`.
  Result<Verdict> verdict_of_row(const Expected& expected, const void* data, std::int64_t at);
  Result<Verdict> judge_learned(const Answer& answer, const att::LaunchParams& params);
  // What is wrong with the row that is farthest off.
  Result<std::string> describe(const Answer& answer, std::size_t slot,
                               const att::LaunchParams& params);

  Device& device_;
  const DType dtype_;
  const std::size_t qk_, v_;
  const bool has_sink_;
  std::vector<expr::TensorDecl> tensors_;
  std::unique_ptr<LoadedFunction> deltas_, sinks_, query_rows_, key_rows_, judge_;
};

}  // namespace attune
