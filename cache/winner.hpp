// Which plan won, computed from measurements: a pure function of a set of rows, so that it cannot
// depend on the order in which they came or on which of two merged files they stood.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace attune::cache {

struct MeasuredRow {
  std::string spec_hash;
  std::string device;
  std::string protocol;
  ProblemShape shape;
  Measurement measurement;
  Pass pass = Pass::kForward;
  MaskData data = {};
};
struct RejectedRow {
  std::string spec_hash;
  std::string device;
  ProblemShape shape;
  Rejection rejection;
  Pass pass = Pass::kForward;
};

// Medians that differ by less than this share of the lower one are equal, and fewer resources win.
// The repeatability of a final's medians on an idle GPU.
constexpr double kNoiseFraction = 0.005;
// Medians of one candidate that were taken at different times differ by less than this factor, also
// where what the finalists say of the GPU's clock at either time is taken out. So a time counts
// before others of fewer than half the samples (a search's final has more than the races before
// it), unless those are so much faster.
constexpr double kBetweenTimes = 1.05;

// Plans of each of several kinds of data, which are compared plan by plan: as many as a tuner takes
// from one kind to the others, and first guesses. Of a single kind the winner and its runners-up.
inline constexpr std::size_t kPlansOfKind = 24;

// True when `rejection`, noted on one device and shape, forbids the candidate on another.
bool rejects(const RejectedRow& rejection, const std::string& device, const ProblemShape& shape);

// The winner of each (spec, pass, shape) measured on the hardware of `device`, in that order;
// measurements under the very driver of `device` go before those under others.
std::vector<ProblemWinner> winners(std::span<const MeasuredRow> rows,
                                   std::span<const RejectedRow> rejections,
                                   const std::string& device);

// How unlike two problems are: a weighted square distance of binary logarithms, 0 for equal ones.
// Doubling q_len or kv_len counts 1, doubling batch x heads 1/2, doubling heads per key head 1/4.
double bucket_distance(const ProblemShape& a, const ProblemShape& b);

// How unlike what was measured is to a launch: the bucket_distance, and what the kind of data that
// is the nearest differs by. Halving the share of live tiles counts 1 as well, as a square of a
// binary logarithm; full ones count less; lengths as length_distance() says. Nothing is known of
// the launch's data: the bucket_distance alone.
double launch_distance(const ProblemShape& measured, std::span<const DataPlans> by_data,
                       const ProblemShape& shape, const MaskData& data);

// The nearest of `candidates` (one pass of one spec) by launch_distance(); ties go to the smaller
// shape. Null only for none.
const ProblemWinner* nearest(std::span<const ProblemWinner> candidates, const ProblemShape& shape,
                             const MaskData& data = {});

}  // namespace attune::cache
