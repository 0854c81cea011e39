// What processors do at best, told from short parts of equal work that others may have disturbed.
#pragma once

#include <vector>

namespace attune {

// Parts a second that one thread does undisturbed: the lower quartile of `seconds`, of which most
// may be too long (another process had the core, its clock was still rising) and few too short (the
// other thread of the core had not begun). 0 for none.
double undisturbed_rate(std::vector<double> seconds);

}  // namespace attune
