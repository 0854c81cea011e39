// wgmma: a warpgroup's asynchronous matrix products D[64, n] += A[64, 16] B[16, n] with fp32 D in
// registers and 16-bit A and B (PTX ISA, wgmma.mma_async). Four whole warps execute each call.
//
// D: lane i of warp w holds rows 16w + i/4 and that + 8; of each block j of 8 columns it holds
// d[4j], d[4j+1] (the first row, columns 8j + 2(i%4) and + 1) and d[4j+2], d[4j+3] (the second
// row). A in registers has mma.m16n8k16's layout. A and B in shared memory are named by
// descriptors.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Rows of 128 bytes under the 128-byte swizzle, as TMA writes them: 16-byte chunk c of row r lies
// at chunk c ^ (r % 8). Groups of 8 rows are 1024 bytes apart. `slab_bytes` is the distance between
// blocks of 64 columns; only operands that are transposed (columns contiguous along n) read it.
// The group of rows at `address` is 1024-byte aligned. (In a cluster, addresses bear the CTA's rank
// above bit 23.) Returns the descriptor's low word, to which multiples of 16 bytes are added as
// bytes / 16; the high word is the same for all.
ATT_FN constexpr unsigned wgmma_descriptor(unsigned address, unsigned slab_bytes) {
  return (slab_bytes >> 4 << 16) | ((address & 0x3FFFF) >> 4);
}

// Orders earlier register writes before the products that follow.
ATT_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATT_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending of the latest groups are still running.
template <int kPending>
ATT_FN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps what computes or uses these registers on its side of the call: the compiler moves
// arithmetic over fences and waits, which name no registers, and ptxas then serialises the products
// (C7514).
template <int kCount>
ATT_FN void wgmma_pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
ATT_FN void wgmma_pin(unsigned (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(registers[i][j])::"memory");
  }
}

// Wgmma<n, bf16, transposed B>: n in steps of 16. Not accumulating starts from zero.
template <int kColumns, bool kBf16, bool kTransposeB>
struct Wgmma;

#define ATT_WGMMA_REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ATT_WGMMA_REGS_32 ATT_WGMMA_REGS_16 ", %8,%9,%10,%11,%12,%13,%14,%15"
#define ATT_WGMMA_REGS_48 ATT_WGMMA_REGS_32 ", %16,%17,%18,%19,%20,%21,%22,%23"
#define ATT_WGMMA_REGS_64 ATT_WGMMA_REGS_48 ", %24,%25,%26,%27,%28,%29,%30,%31"
#define ATT_WGMMA_REGS_80 ATT_WGMMA_REGS_64 ", %32,%33,%34,%35,%36,%37,%38,%39"
#define ATT_WGMMA_REGS_96 ATT_WGMMA_REGS_80 ", %40,%41,%42,%43,%44,%45,%46,%47"
#define ATT_WGMMA_REGS_112 ATT_WGMMA_REGS_96 ", %48,%49,%50,%51,%52,%53,%54,%55"
#define ATT_WGMMA_REGS_128 ATT_WGMMA_REGS_112 ", %56,%57,%58,%59,%60,%61,%62,%63"
#define ATT_WGMMA_REGS_144 ATT_WGMMA_REGS_128 ", %64,%65,%66,%67,%68,%69,%70,%71"
#define ATT_WGMMA_REGS_160 ATT_WGMMA_REGS_144 ", %72,%73,%74,%75,%76,%77,%78,%79"
#define ATT_WGMMA_REGS_176 ATT_WGMMA_REGS_160 ", %80,%81,%82,%83,%84,%85,%86,%87"
#define ATT_WGMMA_REGS_192 ATT_WGMMA_REGS_176 ", %88,%89,%90,%91,%92,%93,%94,%95"
#define ATT_WGMMA_REGS_208 ATT_WGMMA_REGS_192 ", %96,%97,%98,%99,%100,%101,%102,%103"
#define ATT_WGMMA_REGS_224 ATT_WGMMA_REGS_208 ", %104,%105,%106,%107,%108,%109,%110,%111"
#define ATT_WGMMA_REGS_240 ATT_WGMMA_REGS_224 ", %112,%113,%114,%115,%116,%117,%118,%119"
#define ATT_WGMMA_REGS_256 ATT_WGMMA_REGS_240 ", %120,%121,%122,%123,%124,%125,%126,%127"
#define ATT_WGMMA_D8(io, i)                                                                     \
  io(d[i]), io(d[i + 1]), io(d[i + 2]), io(d[i + 3]), io(d[i + 4]), io(d[i + 5]), io(d[i + 6]), \
      io(d[i + 7])
#define ATT_WGMMA_D_16(io) ATT_WGMMA_D8(io, 0)
#define ATT_WGMMA_D_32(io) ATT_WGMMA_D_16(io), ATT_WGMMA_D8(io, 8)
#define ATT_WGMMA_D_48(io) ATT_WGMMA_D_32(io), ATT_WGMMA_D8(io, 16)
#define ATT_WGMMA_D_64(io) ATT_WGMMA_D_48(io), ATT_WGMMA_D8(io, 24)
#define ATT_WGMMA_D_80(io) ATT_WGMMA_D_64(io), ATT_WGMMA_D8(io, 32)
#define ATT_WGMMA_D_96(io) ATT_WGMMA_D_80(io), ATT_WGMMA_D8(io, 40)
#define ATT_WGMMA_D_112(io) ATT_WGMMA_D_96(io), ATT_WGMMA_D8(io, 48)
#define ATT_WGMMA_D_128(io) ATT_WGMMA_D_112(io), ATT_WGMMA_D8(io, 56)
#define ATT_WGMMA_D_144(io) ATT_WGMMA_D_128(io), ATT_WGMMA_D8(io, 64)
#define ATT_WGMMA_D_160(io) ATT_WGMMA_D_144(io), ATT_WGMMA_D8(io, 72)
#define ATT_WGMMA_D_176(io) ATT_WGMMA_D_160(io), ATT_WGMMA_D8(io, 80)
#define ATT_WGMMA_D_192(io) ATT_WGMMA_D_176(io), ATT_WGMMA_D8(io, 88)
#define ATT_WGMMA_D_208(io) ATT_WGMMA_D_192(io), ATT_WGMMA_D8(io, 96)
#define ATT_WGMMA_D_224(io) ATT_WGMMA_D_208(io), ATT_WGMMA_D8(io, 104)
#define ATT_WGMMA_D_240(io) ATT_WGMMA_D_224(io), ATT_WGMMA_D8(io, 112)
#define ATT_WGMMA_D_256(io) ATT_WGMMA_D_240(io), ATT_WGMMA_D8(io, 120)

// 128-byte swizzle, 1024 bytes between groups of 8 rows.
#define ATT_WGMMA_HIGH "0x40000040"

// The operands after D have numbers n/2 and up: x0, x1, ...
#define ATT_WGMMA_SHARED(n, type, io, accumulate, x0, x1, x2)                  \
  asm volatile("{\n.reg .b64 a, b;\n.reg .pred p;\nsetp.ne.b32 p, " accumulate \
               ", 0;\n"                                                        \
               "mov.b64 a, {%" #x0 ", " ATT_WGMMA_HIGH                         \
               "};\n"                                                          \
               "mov.b64 b, {%" #x1 ", " ATT_WGMMA_HIGH                         \
               "};\n"                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" ATT_WGMMA_REGS_##n "}, a, b, p, 1, 1, 0, %" #x2 ";\n}"     \
               : ATT_WGMMA_D_##n(io)                                           \
               : "r"(a), "r"(b), "n"(kTransposeB ? 1 : 0))
#define ATT_WGMMA_REGISTERS(n, type, io, accumulate, x0, x1, x2, x3, x4, x5)     \
  asm volatile("{\n.reg .b64 b;\n.reg .pred p;\nsetp.ne.b32 p, " accumulate      \
               ", 0;\n"                                                          \
               "mov.b64 b, {%" #x4 ", " ATT_WGMMA_HIGH                           \
               "};\n"                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type   \
               " {" ATT_WGMMA_REGS_##n "}, {%" #x0 ", %" #x1 ", %" #x2 ", %" #x3 \
                                       "}, b, p"                                 \
                                       ", 1, 1, %" #x5 ";\n}"                    \
               : ATT_WGMMA_D_##n(io)                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kTransposeB ? 1 : 0))
#define ATT_WGMMA_UPDATE(value) "+f"(value)
#define ATT_WGMMA_START(value) "=f"(value)
#define ATT_WGMMA_VARIANT(form, n, ...)                  \
  if constexpr (kBf16 && kAccumulate)                    \
    form(n, "bf16", ATT_WGMMA_UPDATE, "1", __VA_ARGS__); \
  else if constexpr (kBf16)                              \
    form(n, "bf16", ATT_WGMMA_START, "0", __VA_ARGS__);  \
  else if constexpr (kAccumulate)                        \
    form(n, "f16", ATT_WGMMA_UPDATE, "1", __VA_ARGS__);  \
  else                                                   \
    form(n, "f16", ATT_WGMMA_START, "0", __VA_ARGS__)
#define ATT_WGMMA(n, x0, x1, x2, x3, x4, x5)                                                  \
  template <bool kBf16, bool kTransposeB>                                                     \
  struct Wgmma<n, kBf16, kTransposeB> {                                                       \
    template <bool kAccumulate>                                                               \
    static ATT_MEMBER void shared(float (&d)[n / 2], unsigned a, unsigned b) {                \
      ATT_WGMMA_VARIANT(ATT_WGMMA_SHARED, n, x0, x1, x2);                                     \
    }                                                                                         \
    template <bool kAccumulate>                                                               \
    static ATT_MEMBER void registers(float (&d)[n / 2], const unsigned (&a)[4], unsigned b) { \
      ATT_WGMMA_VARIANT(ATT_WGMMA_REGISTERS, n, x0, x1, x2, x3, x4, x5);                      \
    }                                                                                         \
  }

ATT_WGMMA(16, 8, 9, 10, 11, 12, 13);
ATT_WGMMA(32, 16, 17, 18, 19, 20, 21);
ATT_WGMMA(48, 24, 25, 26, 27, 28, 29);
ATT_WGMMA(64, 32, 33, 34, 35, 36, 37);
ATT_WGMMA(80, 40, 41, 42, 43, 44, 45);
ATT_WGMMA(96, 48, 49, 50, 51, 52, 53);
ATT_WGMMA(112, 56, 57, 58, 59, 60, 61);
ATT_WGMMA(128, 64, 65, 66, 67, 68, 69);
ATT_WGMMA(144, 72, 73, 74, 75, 76, 77);
ATT_WGMMA(160, 80, 81, 82, 83, 84, 85);
ATT_WGMMA(176, 88, 89, 90, 91, 92, 93);
ATT_WGMMA(192, 96, 97, 98, 99, 100, 101);
ATT_WGMMA(208, 104, 105, 106, 107, 108, 109);
ATT_WGMMA(224, 112, 113, 114, 115, 116, 117);
ATT_WGMMA(240, 120, 121, 122, 123, 124, 125);
ATT_WGMMA(256, 128, 129, 130, 131, 132, 133);

#undef ATT_WGMMA
#undef ATT_WGMMA_VARIANT
#undef ATT_WGMMA_START
#undef ATT_WGMMA_UPDATE
#undef ATT_WGMMA_REGISTERS
#undef ATT_WGMMA_SHARED
#undef ATT_WGMMA_HIGH

}  // namespace att
