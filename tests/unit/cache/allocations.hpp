// Counts what operator new hands out, so that a test can see that a path allocates nothing.
#pragma once

namespace attune::cache_testing {

long allocations_of_this_thread();

}  // namespace attune::cache_testing
