// A model, its optimiser and its schedule: what a step of training is.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace train {

// What a step tells.
struct Point {
  double loss = 0;
  // Of a comparison; else 0.
  double reference = 0;  // the reference's loss
  double allowed = 0;    // by how much the two may differ
};

class Learner {
 public:
  virtual ~Learner() = default;
  virtual Point step(const Batch& batch) = 0;
};

// AdamW, whose rate rises to its peak and then falls along a cosine.
class Schedule {
 public:
  explicit Schedule(int steps) : steps_(steps) {}
  AdamwStep at(int step) const;  // from 1

 private:
  int steps_;
};

class Training : public Learner {
 public:
  // `dense` and `attention` must outlive it. The same seed and batches give the same curve.
  Training(Dense<float>& dense, Attention<float>& attention, const ModelShape& shape,
           std::uint64_t seed, int steps)
      : dense_(dense),
        model_(dense, attention, shape, seed),
        schedule_(steps),
        first_moment_(dense.memory(), model_.parameters().size()),
        second_moment_(dense.memory(), model_.parameters().size()) {}

  Point step(const Batch& batch) override;
  // After a step: the gradients that it used.
  Model<float>& model() { return model_; }

 private:
  Dense<float>& dense_;
  Model<float> model_;
  Schedule schedule_;
  Array<float> first_moment_, second_moment_;
  int step_ = 0;
};

}  // namespace train
