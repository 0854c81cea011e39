// Attention whose results are off by as much as rounding makes them: what the curves of two
// right implementations may differ by is what this does to the curve of one.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "shared.hpp"

namespace train {

class NoisyAttention : public Attention<float> {
 public:
  // Adds `noise` times the root mean square of its row to each element of what `exact` gives: a row
  // is a token's part of o, of d_qkv, or a head's part of d_bias. Both must outlive it.
  NoisyAttention(Memory& memory, Attention<float>& exact, const AttentionShape& shape, double noise,
                 std::uint64_t seed)
      : memory_(memory), exact_(exact), shape_(shape), noise_(noise), random_(seed) {}

  void forward(const AttentionPass<float>& pass) override;
  void backward(const AttentionPass<float>& pass,
                const AttentionGradients<float>& gradients) override;

 private:
  void disturb(float* data, std::size_t rows, std::size_t columns);

  Memory& memory_;
  Attention<float>& exact_;
  AttentionShape shape_;
  double noise_;
  Random random_;
};

}  // namespace train
