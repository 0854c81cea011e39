// Turns new queries and keys and writes new keys and values into a cache, on CPU cores: a call does
// the tokens of one item.
#include "templates/append/cpu_elements.h"
#include "templates/append/rows.h"
#include "templates/kernels/append_head.cuh"

extern "C" void ATT_KERNEL_NAME(const att::AppendParams* params, int item) {
  att::append_item(*params, item, 0);
}

#pragma clang attribute pop
