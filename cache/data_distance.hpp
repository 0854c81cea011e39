// How unlike kinds of data are: which of those that were measured answers for a launch.
#pragma once

#include "generator/plan/mask_data.hpp"

namespace attune::cache {

// How unlike two classes of lengths are: doubling the longest beside the mean, or all keys, counts
// 1, pages of twice the rows a quarter. 0 where nothing is known of the second, 1 where nothing is
// of the first.
double length_distance(const LengthClass& measured, const LengthClass& asked);

// The same of two kinds of data, in what is known of the second: halving the live tiles counts 1,
// and so does not knowing them; lengths are added. 0 where both have one label.
double data_distance(const MaskData& measured, const MaskData& asked);

}  // namespace attune::cache
