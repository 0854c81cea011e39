// A decoder-only transformer: pre-norm blocks of attention with grouped heads and of a perceptron
// with GELU. It has no embedding of positions: attention's learned bias by distance tells them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention.hpp"
#include "dense.hpp"
#include "text.hpp"

namespace train {

struct ModelShape {
  std::size_t vocabulary;
  std::size_t layers = 2, width = 64, hidden = 256;
  AttentionShape attention;
};

// A tensor among the parameters.
struct Parameter {
  std::string name;   // "0.qkv"
  std::size_t first;  // its place in Model::parameters()
  std::size_t size;
  bool decays;  // matrices; not gains and biases
};

// `dense` and `attention` must outlive it. One thread at a time.
template <typename T>
class Model {
 public:
  // Parameters are drawn by `seed`.
  Model(Dense<T>& dense, Attention<T>& attention, const ModelShape& shape, std::uint64_t seed);

  const std::vector<Parameter>& layout() const { return layout_; }
  Array<T>& parameters() { return parameters_; }
  Array<T>& gradients() { return gradients_; }

  // The mean loss of a batch's tokens in nats, and its gradients. `step` chooses what is dropped:
  // the same for the same step.
  double loss_and_gradients(const Batch& batch, std::uint64_t step);
  // The loss alone.
  double loss(const Batch& batch, std::uint64_t step);

 private:
  // Places in parameters_.
  struct Block {
    std::size_t norm1, qkv, bias, out, norm2, up, down;
  };
  // What the backward pass of a block needs: x is the block's input, y its middle.
  struct Saved {
    Array<T> x, inverse1, normed1, qkv, o, lse, y, inverse2, normed2, up, active;
  };

  std::size_t add_parameter(const std::string& name, std::size_t size, bool decays);
  void draw(std::uint64_t seed);
  Saved make_saved() const;
  AttentionPass<T> pass(std::size_t layer, std::uint64_t step);
  double forward(const Batch& batch, std::uint64_t step);
  void backward(std::uint64_t step);

  const T* weight(std::size_t at) const { return parameters_.data() + at; }
  T* gradient(std::size_t at) { return gradients_.data() + at; }

  Dense<T>& dense_;
  Attention<T>& attention_;
  ModelShape shape_;
  std::size_t rows_;
  std::vector<Parameter> layout_;
  std::size_t embedding_, final_norm_, head_;
  std::vector<Block> blocks_;
  Array<T> parameters_, gradients_;
  Array<std::int32_t> tokens_, targets_, doc_;
  std::vector<Saved> saved_;
  Array<T> x_, inverse_, normed_, logits_;         // behind the last block
  Array<T> d_x_, d_row_, d_o_, d_qkv_, d_hidden_;  // scratch of the backward pass
};

extern template class Model<float>;
extern template class Model<double>;

}  // namespace train
