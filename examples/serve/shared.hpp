// What this example has in common with examples/train.
#pragma once

#include "../train/error.hpp"
#include "../train/memory.hpp"
#include "../train/random.hpp"

namespace serve {

using train::Array;
using train::Error;
using train::Exit;
using train::Memory;
using train::Random;

}  // namespace serve
