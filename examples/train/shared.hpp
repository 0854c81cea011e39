// What this example has in common with others.
#pragma once

#include "../common/error.hpp"
#include "../common/memory.hpp"
#include "../common/random.hpp"

namespace train {

using examples::Array;
using examples::Error;
using examples::Exit;
using examples::Memory;
using examples::Random;

}  // namespace train
