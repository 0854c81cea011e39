#include "noisy_attention.hpp"

#include <cmath>

namespace train {

void NoisyAttention::disturb(float* data, std::size_t rows, std::size_t columns) {
  std::vector<float> values(rows * columns);
  memory_.read(values.data(), data, values.size() * sizeof(float));
  for (std::size_t i = 0; i < rows; ++i) {
    double squares = 0;
    for (std::size_t j = 0; j < columns; ++j) {
      squares += std::pow(static_cast<double>(values[i * columns + j]), 2);
    }
    const double size = noise_ * std::sqrt(squares / static_cast<double>(columns));
    for (std::size_t j = 0; j < columns; ++j) {
      float& value = values[i * columns + j];
      value = static_cast<float>(value + size * random_.normal());
    }
  }
  memory_.write(data, values.data(), values.size() * sizeof(float));
}

void NoisyAttention::forward(const AttentionPass<float>& pass) {
  exact_.forward(pass);
  disturb(pass.o, shape_.batch * shape_.length, shape_.o_columns());
}

void NoisyAttention::backward(const AttentionPass<float>& pass,
                              const AttentionGradients<float>& gradients) {
  exact_.backward(pass, gradients);
  // Columns of d_qkv are those of queries, keys and values, which differ in size: heads of each.
  disturb(gradients.d_qkv, shape_.batch * shape_.length * (shape_.heads + 2 * shape_.kv_heads),
          shape_.head_dim);
  disturb(gradients.d_bias, shape_.heads, shape_.distances);
}

}  // namespace train
