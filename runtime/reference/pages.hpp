// Paged problems: which pages sequences have, and what lies where they have no keys.
#pragma once

#include <cstdint>
#include <random>
#include <span>

#include "runtime/reference/oracle.hpp"

namespace attune {

// A table for sequences of `lengths` keys in pages of `size`, in an order of no meaning, and a few
// pages that no sequence has. `room`: keys that a sequence of the table may have. `common`: keys
// that all sequences begin with alike; pages that lie wholly in them, and are full in the sequence
// and in the first one, are the first one's.
HostPages draw_pages(std::span<const std::int32_t> lengths, std::int64_t room, std::int64_t size,
                     std::mt19937_64& random, std::int64_t common = 0);

// Rows of k and v that no key of a sequence lies in become NaN.
void spoil_unused(const AttentionSpec& spec, HostProblem& problem);

}  // namespace attune
