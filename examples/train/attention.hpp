// The seam between the model and its attention.
#pragma once

#include <cstddef>
#include <cstdint>

namespace train {

// What attention.yaml describes, for those who do not read it.
struct AttentionShape {
  std::size_t batch, length;
  std::size_t heads = 4, kv_heads = 2, head_dim = 16;
  std::size_t distances = 64;  // of the learned bias' table; farther keys share the last one
  double dropout = 0.1;

  // Columns of a row that holds the queries of all heads, then the keys, then the values.
  std::size_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  std::size_t o_columns() const { return heads * head_dim; }
};

// What a forward pass reads and writes, in the device's memory, row-major and contiguous.
template <typename T>
struct AttentionPass {
  const T* qkv;             // [batch * length, qkv_columns]
  const T* bias;            // [heads, distances]: added to the score of each distance
  const std::int32_t* doc;  // [batch, length]: which document a position belongs to
  std::uint64_t offset;     // dropout: with the seed, which elements are dropped
  T* o;                     // [batch * length, o_columns]
  T* lse;                   // [batch, heads, length]: the logarithm of the softmax' denominator
};
// Its gradients: what arrives at o, and where those of qkv and bias are written.
template <typename T>
struct AttentionGradients {
  const T* d_o;
  T* d_qkv;
  T* d_bias;
};

// Causal attention within documents with a learned bias by distance and dropout. One thread at a
// time. Failures are Error (../common/error.hpp).
template <typename T>
class Attention {
 public:
  virtual ~Attention() = default;
  virtual void forward(const AttentionPass<T>& pass) = 0;
  // `pass` as forward() had and left it.
  virtual void backward(const AttentionPass<T>& pass, const AttentionGradients<T>& gradients) = 0;
};

}  // namespace train
