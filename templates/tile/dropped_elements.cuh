// What dropout keeps of a consumer warpgroup's tile in the sm90a backward's main kernel, 64 queries
// and 2 keys of each thread, as a word of 32 bits: a mask of a register of P is a permutation of
// its bytes, and nothing is kept of a draw but it.
//
// P is scaled for what is dropped when rows are made (scale_in_rows()), so that dS = M P dP - P D
// is two products, of which one is of kept elements alone.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

// Bits of a thread's elements, as ColumnElements counts them: of block n, element e, which is query
// e % 2 and key half e / 2, byte 2 (n / 4) + e % 2 has it at bit 7 - 2 (n % 4) - e / 2. So the two
// elements of a register of P are at the same place of neighbouring bytes.
struct DrawnWord {
  unsigned word;

  // Ones for the halves of a register of P that stay.
  ATT_MEMBER unsigned mask(int n, int half) const {
    const unsigned at_top = word << (2 * (n % 4) + half);
    return byte_permute(at_top, 0u, n < 4 ? 0x9988u : 0xbbaau);
  }
  // Zeroes of P as dV's operand what is dropped.
  template <int kSteps>
  ATT_MEMBER void drop(unsigned (&p)[kSteps][4]) const {
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) p[n / 2][n % 2 * 2 + half] &= mask(n, half);
    }
  }
  // sum + a * b of an element that is kept, else the sum.
  ATT_MEMBER float add_kept(int n, int e, float sum, float a, float b) const {
    const unsigned bit = 1u << (8 * (2 * (n / 4) + e % 2) + 7 - 2 * (n % 4) - e / 2);
    asm("{\n.reg .pred kept;\n.reg .b32 own;\n"
        "and.b32 own, %3, %4;\nsetp.ne.u32 kept, own, 0;\n"
        "@kept fma.rn.f32 %0, %1, %2, %0;\n}"
        : "+f"(sum)
        : "f"(a), "f"(b), "r"(word), "r"(bit));
    return sum;
  }
};

// D of a lane's queries, over scale_in_rows(). The first blocks' are loaded while dP is being made,
// as loads wait for products.
template <int kColumns>
struct LoadedDeltas {
  static constexpr int kBlocks = kColumns / 8, kEarlyBlocks = 1;
  static_assert(kColumns == 64, "a word has the bits of 64 queries and two keys");
  unsigned deltas;  // shared address
  float delta[kBlocks][2];

  ATT_MEMBER explicit LoadedDeltas(unsigned deltas) : deltas(deltas) { load<0, kEarlyBlocks>(); }

  // dP to dS, of slopes that are scaled; as ColumnElements::gradients().
  template <typename Elements, typename Products, typename Keep, typename Kept, typename Learned>
  ATT_MEMBER void gradients(const Elements&, const Context&, Products& slopes, Products& d,
                            const Keep&, const DrawnWord& drawn, const Kept& kept, Learned&) {
    load<kEarlyBlocks, kBlocks>();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      float value[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float slope = element(slopes, n, e);
        const float dropped = -slope * delta[n][e % 2];
        value[e] = drawn.add_kept(n, e, dropped, slope, element(d, n, e));
      }
      kept(n, 0, value[0], value[1]);
      kept(n, 1, value[2], value[3]);
    }
  }

 private:
  template <int kFirst, int kEnd>
  ATT_MEMBER void load() {
#pragma unroll
    for (int n = kFirst; n < kEnd; ++n) {
      load_shared_8(deltas + 32 * n, delta[n][0], delta[n][1]);
    }
  }
};

// How a thread's word is drawn, of a warp whose 16 rows begin at `key_block` times 8 keys, an even
// number. A draw has 32 keys, those of a pair of warps: each makes the draws of half of the
// queries, takes both warps' bits, and leaves the other one's at `place`, kDrawnBytes of shared
// memory, another for the next tile: the other warp may not have read this one's by then. Lanes
// whose keys are neighbours need the same draws, too: each makes one of two, and they tell each
// other the bits.
constexpr int kDrawnBytes = 2 * 32 * 4;
struct PairDraws {
  int key_block;
  unsigned place;
  unsigned own = 0, others = 0;

  // Columns begin at `q_block` times 16 queries.
  ATT_MEMBER void draw(const Context& c, int q_block) {
    constexpr unsigned kTop = 0x80808080u;
    const int lane = thread_index() % 32;
    const unsigned drop_below = dropout_drop_below(c);
    unsigned kept[2] = {};  // of either warp's keys
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned words[4];
      dropout_words(c, q_block + 2 * warp() + i, lane % 4 * 2 + (is_odd() ? 1 : 0), key_block / 4,
                    lane / 8, words);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned low = dropout_keep_bits(words[half], drop_below) & kTop;
        const unsigned high = dropout_keep_bits(words[half + 2], drop_below) & kTop;
        kept[half] |= (low | high >> 2) >> (4 * i);
      }
    }
    // The upper two bytes are those of keys 8 behind.
#pragma unroll
    for (unsigned& bits : kept) bits |= bits >> 17;
    own = warp() == 0 ? kept[0] : kept[1];
    store_shared_4(place_of(warp() ^ 1), warp() == 0 ? kept[1] : kept[0]);
  }
  // What the other warp left, when both have passed a barrier.
  ATT_MEMBER void load() { others = load_shared_4(place_of(warp())); }

  ATT_MEMBER DrawnWord word() const {
    const unsigned all = byte_permute(own, others, warp() == 0 ? 0x5410u : 0x1054u);
    const unsigned of_other_lane = shuffle_xor(all, 4);
    // An odd lane's key is the second one of each draw, and its own draw that of the second query.
    return {byte_permute(all, of_other_lane, is_odd() ? 0x3715u : 0x6240u)};
  }

 private:
  ATT_MEMBER int warp() const { return key_block / 2 % 2; }  // of the pair
  ATT_MEMBER unsigned place_of(int of_warp) const {
    return place + (of_warp * 32 + thread_index() % 32) * 4;
  }
  static ATT_MEMBER bool is_odd() { return (thread_index() / 4 & 1) != 0; }
};

}  // namespace att
