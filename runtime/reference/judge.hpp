// The verdict on any output of a kernel: values against those that an oracle expects.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace attune {

// What an oracle says of one output, row-major.
struct Expected {
  std::string name;       // "o", "dq"
  std::size_t width = 1;  // elements a row
  std::vector<double> values;
  std::vector<double> limits;  // the largest error that an element may have
};

struct Verdict {
  double worst = 0;   // largest error relative to what is allowed; infinite: a wrong pattern
  std::string wrong;  // empty: the output is right
};

// Non-finite pattern first: an infinity or NaN must stand where the oracle has it; else the error
// must not exceed the element's limit. `wrong` names the worst element and counts the offenders.
Verdict judge(const Expected& expected, std::span<const double> out);

}  // namespace attune
