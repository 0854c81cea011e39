// The served model: a decoder-only transformer that reads a step's rows and keeps their keys and
// values in the cache.
#pragma once

#include <vector>

#include "batch.hpp"
#include "cache.hpp"
#include "dense.hpp"
#include "paged_attention.hpp"
#include "weights.hpp"

namespace serve {

// Rows of the cache, as slots.
struct Move {
  std::size_t from, to;
};

class Model {
 public:
  // `dense` and `attention` must outlive it; `attention` is of the same shapes.
  Model(Dense& dense, PagedAttention& attention, const Weights& weights, const CacheShape& cache,
        const Capacity& capacity);

  // The token that each row of the batch is followed by. In each layer one launch writes the rows'
  // keys and values into the cache, and one is of attention. Throws Error.
  std::vector<Choice> run(const Batch& batch);
  // One after the other, in all layers.
  void move(const std::vector<Move>& moves);

 private:
  struct Layer {
    Array<float> qkv, out, up, down;
  };
  Dense& dense_;
  PagedAttention& attention_;
  ModelShape shape_;
  CacheShape cache_shape_;
  Array<float> embedding_, head_;
  std::vector<Layer> layers_;
  Array<float> cache_;
  Array<std::int32_t> tokens_;
  Array<float> x_, normed_, qkv_, o_, up_, logits_;
};

}  // namespace serve
