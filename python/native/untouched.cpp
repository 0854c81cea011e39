#include "untouched.hpp"

#include <algorithm>
#include <cstdint>

namespace attune::calls {

namespace {

constexpr unsigned kBlocks = 264, kThreads = 256;  // mostly there is nothing to write

void write_on_cpu(const Untouched& rows, const void* offsets, std::uint32_t* at) {
  const std::size_t inner = rows.inner, count = rows.rows;
  std::size_t first = 0, end = 0;  // the rows that sequences have
  if (offsets != nullptr) {
    const auto* of_sequences = static_cast<const std::int32_t*>(offsets);
    end = std::min(static_cast<std::size_t>(std::max(of_sequences[rows.last], 0)), count);
    first = std::min(static_cast<std::size_t>(std::max(of_sequences[0], 0)), end);
  }
  for (std::size_t i = 0; i < rows.outer; ++i, at += count * inner) {
    std::fill(at, at + first * inner, rows.word);
    std::fill(at + end * inner, at + count * inner, rows.word);
  }
}

}  // namespace

bool write_untouched(const Untouched& rows, const void* offsets, bool is_on_gpu,
                     const Writer& writer, void* at, void* stream) {
  if (rows.words == 0 || at == nullptr) return true;
  if (!is_on_gpu) {
    write_on_cpu(rows, offsets, static_cast<std::uint32_t*>(at));
    return true;
  }
  if (offsets != nullptr && writer.rows_outside != nullptr && writer.launch_kernel != nullptr) {
    Untouched of = rows;
    void* parameters[] = {&at, &offsets, &of.last, &of.outer, &of.rows, &of.inner, &of.word};
    return writer.launch_kernel(writer.rows_outside, kBlocks, 1, 1, kThreads, 1, 1, 0, stream,
                                parameters, nullptr) == 0;
  }
  return writer.fill_words != nullptr && writer.fill_words(reinterpret_cast<std::uintptr_t>(at),
                                                           rows.word, rows.words, stream) == 0;
}

}  // namespace attune::calls
