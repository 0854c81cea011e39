// Which shapes share a kernel. A kernel is right for every length; only which one is the best
// depends on the shape, and changes seldom.
#pragma once

#include <cstdint>

#include "generator/spec/spec.hpp"

namespace attune {

// How finely shapes are told apart: one by one, as the best plan can tell them apart, or by powers
// of two, where a table has no room for more.
enum class Grain : std::uint8_t { kExact, kFine, kCoarse };

// The shape that stands for all of its bucket: at least as large in every size, of the same heads.
// Small sizes stand for themselves, and so do powers of two; lengths that are equal, or one no more
// than the other, stay so.
ProblemShape bucket_of(const ProblemShape& shape, Grain grain) noexcept;

}  // namespace attune
