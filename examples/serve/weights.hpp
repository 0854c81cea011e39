// The model's sizes and numbers, which the served model and the oracle read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace serve {

struct ModelShape {
  std::size_t layers = 2, width = 64, hidden = 128, vocabulary = 96;
  std::size_t heads = 8, kv_heads = 2, head_dim = 32;

  std::size_t q_columns() const { return heads * head_dim; }
  std::size_t kv_columns() const { return kv_heads * head_dim; }
  // Of a row that holds the queries of all heads, then the keys, then the values.
  std::size_t qkv_columns() const { return q_columns() + 2 * kv_columns(); }
};

// Row-major, in x out.
struct Weights {
  struct Layer {
    std::vector<float> qkv, out, up, down;
  };
  ModelShape shape;
  std::vector<float> embedding, head;
  std::vector<Layer> layers;
};

// The same for the same seed.
Weights draw_weights(const ModelShape& shape, std::uint64_t seed);

}  // namespace serve
