// What is written into a launch's new tensors beside what the launch writes: rows of no sequence it
// leaves as they are.
#pragma once

#include <cstddef>

namespace attune::calls {

/// The driver's cuMemsetD32Async and cuLaunchKernel: 0 where they succeed.
using FillWords = int (*)(unsigned long long at, unsigned word, std::size_t count, void* stream);
using LaunchKernel = int (*)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, void* stream, void** parameters, void** extra);

/// How a GPU writes; null what is not there.
struct Writer {
  FillWords fill_words;
  LaunchKernel launch_kernel;
  void* rows_outside;  // attune.torch._untouched's kernel
};

/// Of a tensor [outer, rows, inner words of four bytes] that is filled with one word: all of it, or
/// the rows before the first sequence and behind the last one.
struct Untouched {
  unsigned long long words;  // of all of it; 0: the launch writes every row
  unsigned word;
  int offsets;    // place among the tensors behind the spec's; negative: all rows are filled
  unsigned last;  // of the offsets: where the last sequence ends
  unsigned outer, rows, inner;
};

/// In the order of the stream, without the interpreter's lock. `offsets` lie where the tensor does.
/// False where nothing can write there.
bool write_untouched(const Untouched& rows, const void* offsets, bool is_on_gpu,
                     const Writer& writer, void* at, void* stream);

}  // namespace attune::calls
