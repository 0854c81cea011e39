#include "gradient_check.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

#include "attune_attention.hpp"
#include "cpu_dense.hpp"
#include "model.hpp"
#include "reference_attention.hpp"

namespace train {
namespace {

// Documents of more than the bias' 64 distances, and a length that is no tile's.
constexpr std::size_t kBatch = 2, kLength = 150;
// Along a direction of length 1 central differences err by the step's square times a third
// derivative, and by the loss' rounding over the step: 1e-15 / 1e-4, beside gradients of 1e-3.
constexpr double kStep = 1e-4;
constexpr double kFiniteLimit = 1e-7;
// Rounding in fp32 through the whole model, of a gradient's norm: 2^-24 times the root of the few
// hundred roundings that an element has behind it, and a margin of eight.
constexpr double kFp32Limit = 1e-5;
// With bf16 attention alone rounds to it, a few times on an element's way: 2^-8, and the margin.
constexpr double kBf16Limit = 0.03;

double dot(const std::vector<double>& x, const std::vector<double>& y, const Parameter& at) {
  double sum = 0;
  for (std::size_t i = at.first; i < at.first + at.size; ++i) sum += x[i] * y[i];
  return sum;
}

// A direction of length 1 among the parameter's elements: half along its gradient, where the loss
// changes most, half at random, so that a wrong element anywhere is seen.
std::vector<double> direction_in(const Parameter& parameter, const std::vector<double>& gradients,
                                 Random& random) {
  std::vector<double> direction(gradients.size(), 0.0);
  for (std::size_t i = parameter.first; i < parameter.first + parameter.size; ++i) {
    direction[i] = random.normal();
  }
  const auto scale = [&](const std::vector<double>& of) {
    return 1 / std::sqrt(dot(of, of, parameter));
  };
  const double at_random = scale(direction), along = scale(gradients);
  for (std::size_t i = parameter.first; i < parameter.first + parameter.size; ++i) {
    direction[i] = at_random * direction[i] + along * gradients[i];
  }
  const double length = scale(direction);
  for (double& value : direction) value *= length;
  return direction;
}

double loss_at(Model<double>& model, const Batch& batch, const std::vector<double>& from,
               const std::vector<double>& direction, double step) {
  std::vector<double> moved = from;
  for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
  model.parameters().write(moved);
  return model.loss(batch, 1);
}

}  // namespace

bool check_gradients(const Corpus& corpus, const std::string& device, Products products,
                     const std::string& spec_file, std::uint64_t seed) {
  Workers workers;
  CpuDense<double> exact_dense(workers);
  const std::unique_ptr<Dense<float>> dense = make_dense(device, workers, products);
  const ModelShape shape{.vocabulary = corpus.vocabulary(),
                         .attention = {.batch = kBatch, .length = kLength}};
  AttuneAttention attention(*dense, device, spec_file, shape.attention, seed);
  ReferenceAttention<double> exact_attention(exact_dense.memory(), workers, shape.attention, seed);
  Model<double> exact(exact_dense, exact_attention, shape, seed);
  Model<float> model(*dense, attention, shape, seed);

  // Learned biases are not 0 for long.
  Random random(seed);
  std::vector<float> parameters = model.parameters().read();
  for (const Parameter& parameter : model.layout()) {
    if (parameter.decays) continue;
    for (std::size_t i = parameter.first; i < parameter.first + parameter.size; ++i) {
      parameters[i] += static_cast<float>(0.3 * random.normal());
    }
  }
  model.parameters().write(parameters);
  const std::vector<double> start(parameters.begin(), parameters.end());
  exact.parameters().write(start);

  const Batch batch = Packer(corpus, kBatch, kLength, seed).next();
  exact.loss_and_gradients(batch, 1);
  model.loss_and_gradients(batch, 1);
  const std::vector<double> gradients = exact.gradients().read();
  const std::vector<float> found = model.gradients().read();

  const double limit = attention.unit() > 0x1p-24 ? kBf16Limit : kFp32Limit;
  bool is_right = true;
  std::printf("%-12s %13s %13s %10s %10s\n", "parameter", "gradient", "difference", "apart",
              "attune");
  for (const Parameter& parameter : model.layout()) {
    const std::vector<double> direction = direction_in(parameter, gradients, random);
    const double slope = dot(gradients, direction, parameter);
    const double difference = (loss_at(exact, batch, start, direction, kStep) -
                               loss_at(exact, batch, start, direction, -kStep)) /
                              (2 * kStep);
    const double size = std::sqrt(dot(gradients, gradients, parameter));
    double squares = 0;
    for (std::size_t i = parameter.first; i < parameter.first + parameter.size; ++i) {
      squares += std::pow(found[i] - gradients[i], 2);
    }
    const double finite = std::abs(slope - difference) / size;
    const double rounding = std::sqrt(squares) / size;
    const bool holds = finite <= kFiniteLimit && rounding <= limit;
    is_right = is_right && holds;
    std::printf("%-12s %13.6e %13.6e %10.1e %10.1e%s\n", parameter.name.c_str(), slope, difference,
                finite, rounding, holds ? "" : "  WRONG");
  }
  std::printf(
      "gradients against finite differences: %.0e allowed; attune's against fp64: %.0e (%s)\n",
      kFiniteLimit, limit, is_right ? "right" : "WRONG");
  return is_right;
}

}  // namespace train
