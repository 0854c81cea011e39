// O straight from registers, where shared memory has no room for it beside Q.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/transpose.cuh"

namespace att {
namespace sm90 {

// Of a warpgroup's accumulators, of which a thread has rows `row` and row + 8. Columns that pad a
// head are left out.
template <int kRegisters>
ATT_FN void store_output_rows(const float (&o)[kRegisters], const Context& c, int row) {
  const int lane = thread_index() % 4;
  const Strides& stride = c.params.o_stride;
  char* const out =
      static_cast<char*>(c.params.o) + 2 * query_offset(sequence_of(c), stride, c.h, row);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int first = 0; first < spec::kHeadDimV / 8; first += 4) {  // blocks of 8 columns
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = first + i < spec::kHeadDimV / 8 ? first + i : first;
        words[i] = pack_2<spec::kDType>(o[4 * block + 2 * half], o[4 * block + 2 * half + 1]);
      }
      transpose_quad(words);
      if (row + 8 * half < c.q_len && first + lane < spec::kHeadDimV / 8) {
        store_global_16(out + 2 * (8 * half * stride.seq + 8 * (first + lane)), words);
      }
    }
  }
}

}  // namespace sm90
}  // namespace att
