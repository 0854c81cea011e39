// The faults that a verification of the CPU family must find.
#pragma once

#include "tests/verification/editing_compiler.hpp"
#include "tests/verification/problems.hpp"

namespace attune::planted {

// Those that can be in such a problem.
std::vector<Fault> cpu_faults(const Site& site);

}  // namespace attune::planted
