#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace train {
namespace {

constexpr int kReplicas = 2;
constexpr double kUnit = 0x1p-24;  // by how much fp32, the model's dtype, rounds a number, at most

std::unique_ptr<Attention<float>> make_reference(Dense<float>& dense, Workers& workers,
                                                 const AttentionShape& shape, std::uint64_t seed) {
  return std::make_unique<ReferenceAttention<float>>(dense.memory(), workers, shape, seed);
}

template <typename... Values>
std::string text(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

// |x - y| and |y| of each parameter.
struct Difference {
  double apart, size;
  double relative() const { return size > 0 ? apart / size : apart > 0 ? HUGE_VAL : 0; }
};
std::vector<Difference> differences(Training& one, Training& other) {
  const std::vector<float> x = one.model().gradients().read(), y = other.model().gradients().read();
  std::vector<Difference> result;
  for (const Parameter& parameter : one.model().layout()) {
    double apart = 0, size = 0;
    for (std::size_t i = parameter.first; i < parameter.first + parameter.size; ++i) {
      apart += std::pow(static_cast<double>(x[i]) - y[i], 2);
      size += std::pow(static_cast<double>(y[i]), 2);
    }
    result.push_back({std::sqrt(apart), std::sqrt(size)});
  }
  return result;
}

}  // namespace

Comparison::Comparison(Dense<float>& dense, Workers& workers, Attention<float>& attention,
                       double unit, const ModelShape& shape, std::uint64_t seed, int steps)
    : exact_([&] {
        std::vector<std::unique_ptr<Attention<float>>> all;
        for (int i = 0; i <= kReplicas; ++i) {
          all.push_back(make_reference(dense, workers, shape.attention, seed));
        }
        return all;
      }()),
      tested_(dense, attention, shape, seed, steps),
      reference_(dense, *exact_[0], shape, seed, steps) {
  for (std::size_t i = 1; i <= kReplicas; ++i) {
    noisy_.push_back(std::make_unique<NoisyAttention>(dense.memory(), *exact_[i], shape.attention,
                                                      kNoiseUnits * unit, seed + i));
    replicas_.push_back(std::make_unique<Training>(dense, *noisy_.back(), shape, seed, steps));
  }
}

Point Comparison::step(const Batch& batch) {
  ++step_;
  Point point = tested_.step(batch);
  point.reference = reference_.step(batch).loss;
  for (const auto& replica : replicas_) {
    noise_ = std::max(noise_, std::abs(replica->step(batch).loss - point.reference));
  }
  // Replicas may happen to agree: at least each token's loss, of which `loss` is the mean, is
  // rounded in its own way.
  const double tokens = static_cast<double>(batch.tokens.size());
  point.allowed = kMargin * std::max(noise_, kUnit * point.reference / std::sqrt(tokens));
  // Not a number differs from everything.
  if (!(std::abs(point.loss - point.reference) <= point.allowed)) {
    wrong_.push_back(text("step %d: the losses differ by %.2e, allowed are %.2e", step_,
                          std::abs(point.loss - point.reference), point.allowed));
  }
  if (step_ == 1) compare_gradients();
  return point;
}

void Comparison::compare_gradients() {
  const std::vector<Difference> found = differences(tested_, reference_);
  std::vector<double> allowed(found.size(), 0.0);
  for (const auto& replica : replicas_) {
    const std::vector<Difference> noise = differences(*replica, reference_);
    for (std::size_t i = 0; i < allowed.size(); ++i) {
      allowed[i] = std::max(allowed[i], kMargin * std::max(noise[i].relative(), kUnit));
    }
  }
  double worst = -1;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string& name = tested_.model().layout()[i].name;
    const double share = found[i].relative() / allowed[i];
    if (!(share <= worst)) {
      worst = share;
      gradients_ = text("%.2e of %.2e that are allowed, in %s", found[i].relative(), allowed[i],
                        name.c_str());
    }
    if (!(share <= 1)) {
      wrong_.push_back(text("step 1: the gradients of %s differ by %.2e, allowed are %.2e",
                            name.c_str(), found[i].relative(), allowed[i]));
    }
  }
}

}  // namespace train
