// What the emulated driver puts into a CUtensorMap.
#pragma once

#include "tests/emulator/machine_calls.hpp"

namespace emu {

struct TensorMap {
  u64 address;
  u64 strides[4];  // bytes; of dims 1 to 4
  u32 dims[5];
  u16 box[5];
  unsigned char rank, element_bytes, swizzle;  // 0, or 1 to 3 for 32, 64 and 128 bytes
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace emu
