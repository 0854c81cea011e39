#include "weights.hpp"

#include <cmath>

#include "shared.hpp"

namespace serve {

// Products keep the size of what they are given; those that are added to the residual stream are
// smaller, so that all layers together make it as large as one would. Attention is let to look at
// few keys rather than at the mean of all (kSharp), so that a wrong key is seen in the logits.
Weights draw_weights(const ModelShape& shape, std::uint64_t seed) {
  constexpr double kSharp = 1.5;
  const double residual = 1 / std::sqrt(2.0 * static_cast<double>(shape.layers));
  Random random(seed);
  const auto draw = [&](std::size_t in, std::size_t out, double size) {
    std::vector<float> matrix(in * out);
    const double deviation = size / std::sqrt(static_cast<double>(in));
    for (float& value : matrix) value = static_cast<float>(deviation * random.normal());
    return matrix;
  };
  Weights weights{.shape = shape, .embedding = {}, .head = {}, .layers = {}};
  weights.embedding =
      draw(shape.vocabulary, shape.width, std::sqrt(static_cast<double>(shape.vocabulary)));
  weights.head = draw(shape.width, shape.vocabulary, 1);
  for (std::size_t i = 0; i < shape.layers; ++i) {
    weights.layers.push_back({draw(shape.width, shape.qkv_columns(), kSharp),
                              draw(shape.q_columns(), shape.width, residual),
                              draw(shape.width, shape.hidden, 1),
                              draw(shape.hidden, shape.width, residual)});
  }
  return weights;
}

}  // namespace serve
