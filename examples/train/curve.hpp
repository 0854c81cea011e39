// The loss of each step, as a table and as a picture.
#pragma once

#include <string>
#include <vector>

#include "learner.hpp"

namespace train {

struct Curve {
  std::vector<Point> points;  // of the steps from 1 on
  bool is_compared = false;   // their reference and allowed are there
};

// "step,loss" or "step,loss,reference,allowed", a line each step; numbers say all of a double.
// Throws Error when the file cannot be written.
void write_csv(const Curve& curve, const std::string& path);

// The curves, and below them by how much they differ, beside what is allowed. `subtitle` says what
// was trained on what. Throws Error when the file cannot be written. Precondition: a point is
// there.
void write_svg(const Curve& curve, const std::string& subtitle, const std::string& path);

}  // namespace train
