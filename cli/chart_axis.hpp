// A logarithmic axis of a chart, and where it is labelled.
#pragma once

#include <vector>

namespace attune::cli {

// From `low` to `high` onto pixels `from` and `to`.
struct Axis {
  double low, high, from, to;
  double at(double value) const;
};

// Over all positive finite values, with room on both sides; a range even for a single value.
Axis axis_over(const std::vector<double>& values, double from, double to);

// Round numbers on the axis, ascending: at least three, and no more than have room for their text.
std::vector<double> ticks(const Axis& axis);

}  // namespace attune::cli
