// Lengths for sequences that nobody brought.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "generator/spec/spec.hpp"

namespace attune {

// Where nothing is said of paged sequences' lengths they have this share of the keys that there is
// room for, at least, and up to all of them, all as likely; the mean of that.
inline constexpr double kLeastUnsaid = 0.5, kMeanUnsaid = (kLeastUnsaid + 1) / 2;

// Keys of each sequence of `shape`, as spec.lengths says, which must say something. All of packed
// sequences sum to kv_len; paged ones have at most kv_len each. How many are how long follows from
// the shape alone, so that times of different draws are of the same work; only their order is drawn
// (that of given ones is kept). Given lengths of another shape are spread over this one.
std::vector<std::int32_t> key_lengths(const AttentionSpec& spec, const ProblemShape& shape,
                                      std::mt19937_64& random);

// Ends of stretches of `total` whose sizes are in the proportion of `weights`, behind a 0.
std::vector<std::int32_t> offsets_in_proportion(std::span<const double> weights,
                                                std::int64_t total);

// kBadInput where what spec.lengths says does not go with the layout ("lengths-layout") or the
// shape ("lengths-shape").
Status check_lengths(const AttentionSpec& spec, const ProblemShape& shape);

}  // namespace attune
