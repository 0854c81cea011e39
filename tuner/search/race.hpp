// Successive halving (Jamieson, Talwalkar 2016) on launch times: everybody runs a few interleaved
// rounds, who is clearly slower leaves, the rest run more.
#pragma once

#include <functional>
#include <vector>

#include "tuner/executor.hpp"
#include "tuner/statistics.hpp"

namespace attune {

struct Contestant {
  Candidate candidate;
  CompiledFacts facts;
  bool is_new = true;   // false: an incumbent that runs along to compare with; it never leaves
  double known_us = 0;  // of an incumbent: what it took in the race that it was new in; 0: unknown
  std::vector<double> samples_us;
};

struct RaceOptions {
  double noise_fraction = 0.01;
  int rounds_factor = 1;    // times full_sample_count()
  bool to_the_end = false;  // nobody leaves before
  // Called for every contestant that leaves or finishes, as it does, with at least one sample. Its
  // samples are as if the GPU were as it was when the incumbent was new: what that takes in the
  // same rounds says how much slower or faster it has become since.
  std::function<void(const Contestant&)> finished;
  // Called for one that failed; `error` is the candidate's.
  std::function<void(const Contestant&, const Error& error)> failed;
  // Called after the first rounds, and again when another one leads: who will probably win.
  // Optional.
  std::function<void(const Contestant&)> leads;
  // Called after every round; false stops the race. Contestants still in it are not finished.
  std::function<bool()> go_on;
};

// Fails only with an error that is not a candidate's.
Status race(std::vector<Contestant> contestants, Executor& executor, const RaceOptions& options);

// Samples that the last ones standing get: enough for a stable median, within about a second a
// candidate.
int full_sample_count(double median_us);

}  // namespace attune
