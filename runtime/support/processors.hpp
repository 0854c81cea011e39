// How many processors there are to use.
#pragma once

namespace attune {

// Processors that this process may use: its affinity, its cgroup's CPU quota rounded up, and no
// more than ATTUNE_NUM_THREADS where that is set. At least 1.
int usable_processors();

}  // namespace attune
