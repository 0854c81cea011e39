// Exchange and votes among the 32 lanes of a warp; all lanes take part.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN float shuffle_xor(float value, int lane_mask) {
  float out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
               : "=f"(out)
               : "f"(value), "r"(lane_mask));
  return out;
}

ATT_FN unsigned shuffle_xor(unsigned value, int lane_mask) {
  unsigned out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
               : "=r"(out)
               : "r"(value), "r"(lane_mask));
  return out;
}

// Lane `lane`'s value, the same for all.
ATT_FN int shuffle_from(int value, int lane) {
  int out;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(out) : "r"(value), "r"(lane));
  return out;
}

ATT_FN long long shuffle_long_from(long long value, int lane) {
  const int low = shuffle_from(static_cast<int>(value), lane);
  const int high = shuffle_from(static_cast<int>(value >> 32), lane);
  return static_cast<long long>(high) << 32 | static_cast<unsigned>(low);
}

// Of the four lanes that the caller's is one of (4i to 4i + 3), number `lane`'s value.
ATT_FN int shuffle_of_four(int value, int lane) {
  int out;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1c1f, 0xffffffff;"
               : "=r"(out)
               : "r"(value), "r"(lane));
  return out;
}

ATT_FN long long shuffle_long_of_four(long long value, int lane) {
  const int low = shuffle_of_four(static_cast<int>(value), lane);
  const int high = shuffle_of_four(static_cast<int>(value >> 32), lane);
  return static_cast<long long>(high) << 32 | static_cast<unsigned>(low);
}

// The least of all lanes' values.
ATT_FN unsigned least_of_lanes(unsigned value) {
  unsigned out;
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(out) : "r"(value));
  return out;
}

// The most of them.
ATT_FN unsigned most_of_lanes(unsigned value) {
  unsigned out;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(out) : "r"(value));
  return out;
}

// All of them together.
ATT_FN int total_of_lanes(int value) {
  int out;
  asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(out) : "r"(value));
  return out;
}

// Bit i: lane i's condition.
ATT_FN unsigned ballot(bool condition) {
  unsigned out;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %1, 0;\n vote.sync.ballot.b32 %0, p, 0xffffffff;\n}"
      : "=r"(out)
      : "r"(static_cast<unsigned>(condition)));
  return out;
}

// An 8 x 8 matrix of 16-bit numbers, of which lane i has two of row i / 4, transposed.
ATT_FN unsigned transposed_matrix(unsigned two) {
  unsigned out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
  return out;
}

ATT_FN bool all_lanes(bool condition) { return ballot(condition) == 0xffffffffu; }

ATT_FN void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

}  // namespace att
