// The model by its definition: a whole sequence from scratch in fp64, without a cache, a batch or
// Attune. Shares no code with the served model but the weights.
#pragma once

#include <string>
#include <vector>

#include "request.hpp"
#include "weights.hpp"

namespace serve {

// How far apart fp32 and fp64 may lie, in logits; those of the model are about 1 in size.
constexpr double kTolerance = 1e-4;

class Oracle {
 public:
  // `weights` must outlive it.
  explicit Oracle(const Weights& weights) : weights_(weights) {}

  // Empty where each generated token of the request is the one that the oracle chooses after those
  // before it, with the same logit; else a line that says which is not. Where the oracle prefers
  // another token by less than kTolerance, the logits decide alone.
  std::string check(const Request& request);
  // The furthest that logits lay apart so far.
  double apart() const { return apart_; }

 private:
  std::vector<double> logits(const std::vector<std::int32_t>& tokens) const;

  const Weights& weights_;
  double apart_ = 0;
};

}  // namespace serve
