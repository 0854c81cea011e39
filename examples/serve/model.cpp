#include "model.hpp"

#include <limits>

namespace serve {
namespace {

Array<float> upload(Memory& memory, const std::vector<float>& values) {
  Array<float> array(memory, values.size());
  array.write(values);
  return array;
}

}  // namespace

Model::Model(Dense& dense, PagedAttention& attention, const Weights& weights,
             const CacheShape& cache, const Capacity& capacity)
    : dense_(dense),
      attention_(attention),
      shape_(weights.shape),
      cache_shape_(cache),
      embedding_(upload(dense.memory(), weights.embedding)),
      head_(upload(dense.memory(), weights.head)),
      // What nobody wrote is not a number, and would be seen in the logits.
      cache_(upload(dense.memory(),
                    std::vector<float>(cache.size(), std::numeric_limits<float>::quiet_NaN()))),
      tokens_(dense.memory(), capacity.rows),
      x_(dense.memory(), capacity.rows * shape_.width),
      normed_(dense.memory(), capacity.rows * shape_.width),
      qkv_(dense.memory(), capacity.rows * shape_.qkv_columns()),
      o_(dense.memory(), capacity.rows * shape_.q_columns()),
      up_(dense.memory(), capacity.rows * shape_.hidden),
      logits_(dense.memory(), capacity.rows * shape_.vocabulary) {
  Memory& memory = dense.memory();
  for (const Weights::Layer& layer : weights.layers) {
    layers_.push_back({upload(memory, layer.qkv), upload(memory, layer.out),
                       upload(memory, layer.up), upload(memory, layer.down)});
  }
}

std::vector<Choice> Model::run(const Batch& batch) {
  const std::size_t rows = batch.rows(), width = shape_.width;
  const std::size_t qkv_columns = shape_.qkv_columns();
  dense_.memory().write(tokens_.data(), batch.tokens.data(), rows * sizeof(std::int32_t));
  attention_.begin(batch);

  dense_.embed(rows, width, tokens_.data(), embedding_.data(), x_.data());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    dense_.rms_norm(rows, width, x_.data(), normed_.data());
    dense_.multiply(rows, width, qkv_columns, normed_.data(), layer.qkv.data(), qkv_.data());
    attention_.append(i, qkv_.data(), cache_.data());
    attention_.forward(i, qkv_.data(), cache_.data(), o_.data());
    dense_.multiply(rows, shape_.q_columns(), width, o_.data(), layer.out.data(), x_.data(), true);

    dense_.rms_norm(rows, width, x_.data(), normed_.data());
    dense_.multiply(rows, width, shape_.hidden, normed_.data(), layer.up.data(), up_.data());
    dense_.gelu(rows * shape_.hidden, up_.data());
    dense_.multiply(rows, shape_.hidden, width, up_.data(), layer.down.data(), x_.data(), true);
  }
  dense_.rms_norm(rows, width, x_.data(), normed_.data());
  dense_.multiply(rows, width, shape_.vocabulary, normed_.data(), head_.data(), logits_.data());
  return dense_.choose(rows, shape_.vocabulary, logits_.data());
}

void Model::move(const std::vector<Move>& moves) {
  for (const Move& move : moves) {
    const std::size_t from = cache_shape_.row(move.from), to = cache_shape_.row(move.to);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      for (const std::size_t matrix : {cache_shape_.keys(layer), cache_shape_.values(layer)}) {
        dense_.move(cache_shape_.columns, matrix + from, matrix + to, cache_.data());
      }
    }
  }
}

}  // namespace serve
