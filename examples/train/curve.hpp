// The loss of each step, as a table and as a picture.
#pragma once

#include <string>
#include <vector>

#include "learner.hpp"

namespace train {

// The losses of another run, from step 1 on.
struct OtherCurve {
  std::string name;
  std::vector<double> losses;
};

struct Curve {
  std::vector<Point> points;       // of the steps from 1 on
  bool is_compared = false;        // their reference and allowed are there
  std::string device;              // "cpu"
  std::vector<OtherCurve> others;  // for the picture
};

// From a table of write_csv(). Throws Error when the file is none.
OtherCurve read_csv(const std::string& name, const std::string& path);

// "step,loss" or "step,loss,reference,allowed", a line each step; numbers say all of a double.
// Throws Error when the file cannot be written.
void write_csv(const Curve& curve, const std::string& path);

// The curves, and below them by how much they differ from the reference, beside what is allowed.
// `subtitle` says what was trained on what. Throws Error when the file cannot be written.
// Precondition: a point is there.
void write_svg(const Curve& curve, const std::string& subtitle, const std::string& path);

}  // namespace train
