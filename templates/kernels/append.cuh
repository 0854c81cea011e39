// Turns new queries and keys and writes new keys and values into a cache, on a GPU: a CTA a token,
// whose threads share out chunks of 16 bytes. Memory's speed is all there is to have, and takes
// many CTAs at once.
#include "templates/append/device_elements.cuh"
#include "templates/append/rows.h"
#include "templates/kernels/append_head.cuh"

ATT_KERNEL __launch_bounds__(att::append::kWorkers, 8)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::AppendParams params) {
  att::append_item(params, att::block_index(), att::thread_index());
}
