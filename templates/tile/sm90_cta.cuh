// What the CTAs of all sm90a kernels have in common: warpgroups and their registers, slabs of
// swizzled matrices, positions in rings of stages.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"

namespace att {
namespace sm90 {

constexpr int kWarpgroups = plan::kWarpgroups;  // consumers
constexpr int kWarpgroupThreads = 128;
constexpr int kThreads = (kWarpgroups + 1) * kWarpgroupThreads;
constexpr int kStages = plan::kStages;

// Registers of a thread after setmaxnreg. A warpgroup waits until what it asks for is there, and a
// CTA has what it was started with: for every thread the same number, a multiple of 8.
constexpr int kProducerRegisters = plan::kProducerRegisters;
constexpr int kConsumerRegisters = plan::kConsumerRegisters;
static_assert(kProducerRegisters + kWarpgroups * kConsumerRegisters <=
                  (kWarpgroups + 1) * (65536 / kThreads / 8 * 8),
              "the consumers would wait for registers that the CTA does not have");

// Matrices are stored as TMA's 128-byte swizzle leaves them: slabs of 64 columns, each row of a
// slab 128 bytes.
constexpr int kSlabColumns = 64;
constexpr int kRowBytes = 128;
ATT_FN constexpr int slabs(int columns) { return (columns + kSlabColumns - 1) / kSlabColumns; }
constexpr int kQkSlabs = slabs(spec::kHeadDimQk);
constexpr int kVSlabs = slabs(spec::kHeadDimV);
// Products go through a head dim in steps of 16. What lies behind a head's own columns are zeros
// that TMA brings, and TMA leaves out what they come to.
ATT_FN constexpr int whole_steps(int columns) { return (columns + 15) / 16 * 16; }
constexpr int kColumnsQk = whole_steps(spec::kHeadDimQk);
constexpr int kColumnsV = whole_steps(spec::kHeadDimV);

// The 16-byte unit `unit` (8 columns) of row `row` in a slab.
ATT_FN unsigned swizzled(unsigned slab, int row, int unit) {
  return slab + row * kRowBytes + ((unit ^ (row & 7)) << 4);
}

// A position in a ring, and the parity of its phase.
template <int kCount>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  ATT_MEMBER void advance() {
    const bool wraps = stage == kCount - 1;
    stage = wraps ? 0 : stage + 1;
    parity ^= wraps ? 1u : 0u;
  }
};
using RingPosition = Ring<kStages>;

// The value, which is the same in all lanes, so that ptxas sees that it is.
template <int kCount>
ATT_FN Ring<kCount> uniform(const Ring<kCount>& at) {
  return {shuffle_from(at.stage, 0), static_cast<unsigned>(shuffle_from(at.parity, 0))};
}

// A word of shared memory, the same in all lanes, and known to be so.
ATT_FN int load_uniform_word(unsigned address) {
  return shuffle_from(static_cast<int>(load_shared_4(address)), 0);
}

}  // namespace sm90
}  // namespace att
