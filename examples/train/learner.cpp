#include "learner.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace train {
namespace {

constexpr double kPeakRate = 1e-2, kLastRate = 1e-3;
constexpr int kWarmUp = 20;
constexpr double kDecay = 0.1;

}  // namespace

AdamwStep Schedule::at(int step) const {
  const double rising = std::min(1.0, static_cast<double>(step) / kWarmUp);
  const double done = static_cast<double>(step) / steps_;
  const double cosine = (1 + std::cos(std::numbers::pi * done)) / 2;
  return {.rate = rising * (kLastRate + (kPeakRate - kLastRate) * cosine),
          .decay = kDecay,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .step = step};
}

Point Training::step(const Batch& batch) {
  ++step_;
  const double loss = model_.loss_and_gradients(batch, static_cast<std::uint64_t>(step_));
  AdamwStep update = schedule_.at(step_);
  for (const Parameter& parameter : model_.layout()) {
    update.decay = parameter.decays ? kDecay : 0;
    dense_.adamw(update, parameter.size, model_.gradients().data() + parameter.first,
                 model_.parameters().data() + parameter.first,
                 first_moment_.data() + parameter.first, second_moment_.data() + parameter.first);
  }
  return {.loss = loss};
}

}  // namespace train
