// A cache of fewer bits than Q has: its elements, and the scales that make K and V of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "runtime/reference/oracle.hpp"

namespace attune {

// What has a scale of its own.
enum class ScaleKind : std::uint8_t {
  kNone,       // nothing: all are 1
  kPerTensor,  // K, and V
  kPerHead,    // a head of them
  kPerPage     // a head in a page, or of a sequence that is not packed
};

// Draws scales for K and V of a problem that has all of both, and rounds them to what such a cache
// can hold: each scale is 0.8 to 1.6 times what the largest element asks for, so that some elements
// are the largest there is. NaN stays.
void quantise_cache(const AttentionSpec& spec, HostProblem& problem, ScaleKind kind,
                    std::mt19937_64& random);

// The same with the scales that an engine would choose: those at which the largest element of what
// shares one is the largest that e4m3 has, 448.
void choose_scales(const AttentionSpec& spec, HostProblem& problem, ScaleKind kind);

// Slices of k and v in a problem: pages, sequences, or all packed ones together.
std::int64_t cache_slices(const AttentionSpec& spec, const HostProblem& problem);

// K or V of a problem, in the order it has them there, as the elements that the cache holds.
std::vector<double> stored_elements(std::span<const double> values, const HostScales& scales,
                                    std::int64_t slices, std::int64_t heads);

// The scales as a device reads them: fp32.
std::vector<std::byte> scale_bytes(const HostScales& scales);

}  // namespace attune
