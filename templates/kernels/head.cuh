// An example of what the generator puts in front of a kernel: the facts of one spec and plan, and its
// functions. `causal and doc[b, q_idx] == doc[b, kv_idx]`, softcap 30, bf16, d 128. The generator replaces this
// file by the real head, so every template compiles as it stands and nothing else changes between specs.
#pragma once

#include "templates/params.h"
#include "templates/ptx/platform.cuh"
#include "templates/tile/head_support.cuh"

namespace att {

enum class DType { f16, bf16, f32, f8_e4m3 };

namespace spec {
constexpr DType kDType = DType::bf16;
constexpr int kHeadDimQk = 128;
constexpr int kHeadDimV = 128;
constexpr bool kHasMask = true;    // false: mask, classify_tile and kv_bounds are trivial
constexpr bool kHasScore = true;   // false: score() is the identity and must not be called
constexpr bool kHasSink = false;   // false: sink() must not be called
constexpr bool kHasDropout = false;
constexpr bool kScaleAtLaunch = false;
constexpr float kSoftmaxScale = 0.08838834764831845f;
constexpr bool kDropoutAtLaunch = false;
constexpr unsigned kDropoutDropBelow = 0;  // of 256
constexpr float kDropoutKeepScale = 1.0f;
}  // namespace spec

// The (batch, head) a work item belongs to. kv_head = h / (heads / kv_heads).
struct Context {
  const ForwardParams& params;
  int b, h, h_kv, q_len, kv_len;
};

// True when the key is live. Any q_idx, kv_idx >= 0: look-ups stay inside their tensors, so a kernel may
// ask beyond the lengths and combine the answer without a branch: (k < kv_len) & mask(c, q, k).
ATT_FN bool mask(const Context& c, int q_idx, int kv_idx) {
  const int t0 = load_i32(c.params.tensors[0],
                          static_cast<long long>(c.b) * c.kv_len + clamp_above(q_idx, c.kv_len));
  const int t1 = load_i32(c.params.tensors[0],
                          static_cast<long long>(c.b) * c.kv_len + clamp_above(kv_idx, c.kv_len));
  return kv_idx <= q_idx + (c.kv_len - c.q_len) && t0 == t1;
}

// Natural-unit score of one element from its scaled product.
ATT_FN float score(const Context& c, float s, int q_idx, int kv_idx) {
  return 30.0f * math_tanh(s * 0.033333335f);
}

ATT_FN float sink(const Context& c) { return 0.0f; }

// Class of the box [q0, q1) x [k0, k1), q1 <= q_len, k1 <= kv_len. Sound; cheap enough for one thread a tile.
ATT_FN TileClass classify_tile(const Context& c, int q0, int q1, int k0, int k1) {
  // The real one is emitted from the intervals of the mask.
  return TileClass::kPartial;
}

// Keys outside [begin, end) are dead for every query of [q0, q1). 0 <= begin, end <= kv_len; begin >= end: none is live.
ATT_FN KvBounds kv_bounds(const Context& c, int q0, int q1) {
  return {0, min_i32(c.kv_len, q1 + (c.kv_len - c.q_len))};
}

namespace plan {  // one constant a member of the family's plan struct
constexpr int kTileQ = 128;
constexpr int kTileKv = 64;
constexpr int kStages = 2;
constexpr int kWarps = 4;
constexpr bool kQInRegisters = false;
constexpr bool kFrozenMax = true;
constexpr int kChunk = 32;
constexpr int kUnroll = 1;
constexpr int kMinCtas = 2;  // resident CTAs that the register budget must allow
}  // namespace plan

}  // namespace att

#define ATT_KERNEL_NAME att_sm80_fwd_bf16_d128_q128k64s2_00000000
