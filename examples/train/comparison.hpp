// The same training with two implementations of attention, and what rounding allows between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "learner.hpp"
#include "noisy_attention.hpp"
#include "reference_attention.hpp"

namespace train {

// Training amplifies differences: two right implementations round differently, and their curves
// part by and by. So the yardstick is measured: replicas of the reference whose attention is
// disturbed by what the dtype of Attune's kernels rounds. Two curves lie on each other where they
// differ by no more than kMargin times what these replicas have differed by so far.
class Comparison : public Learner {
 public:
  static constexpr double kMargin = 8;
  // Of a row's root mean square: four roundings. Probabilities are rounded, their products, the
  // sums and the result.
  static constexpr double kNoiseUnits = 4;

  // `unit` is by how much `attention` rounds a number, relative to it. `dense`, `workers` and
  // `attention` must outlive it.
  Comparison(Dense<float>& dense, Workers& workers, Attention<float>& attention, double unit,
             const ModelShape& shape, std::uint64_t seed, int steps);

  // The first step also compares the gradients of every parameter.
  Point step(const Batch& batch) override;

  // False once a loss or a gradient differed by more than is allowed.
  bool is_right() const { return wrong_.empty(); }
  // What differed, a line each.
  const std::vector<std::string>& wrong() const { return wrong_; }
  // Of the first step: the largest difference of a parameter's gradients, and what is allowed of
  // that one, both relative to the gradient's norm.
  const std::string& gradients() const { return gradients_; }

 private:
  void compare_gradients();

  std::vector<std::unique_ptr<Attention<float>>> exact_, noisy_;
  Training tested_, reference_;
  std::vector<std::unique_ptr<Training>> replicas_;
  int step_ = 0;
  double noise_ = 0;  // by which the replicas' losses have differed
  std::string gradients_;
  std::vector<std::string> wrong_;
};

}  // namespace train
