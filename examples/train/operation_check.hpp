// Every operation of a device against the CPU's in fp64.
#pragma once

#include "dense.hpp"
#include "workers.hpp"

namespace train {

// On sizes that no block divides, printed a line each. True when all hold.
bool check_operations(Dense<float>& dense, Workers& workers);

}  // namespace train
