#include "untouched.hpp"

#include <algorithm>
#include <cstdint>

namespace attune::calls {

namespace {

constexpr unsigned kBlocks = 264, kThreads = 256;  // mostly there is nothing to write

void write_on_cpu(const Untouched& rows, const void* offsets, std::uint32_t* at) {
  std::size_t begin = 0;
  if (offsets != nullptr) {
    const std::int32_t end = static_cast<const std::int32_t*>(offsets)[rows.last];
    begin = std::min(static_cast<std::size_t>(std::max(end, 0)), std::size_t{rows.rows});
  }
  const std::size_t step = std::size_t{rows.rows} * rows.inner;
  for (std::size_t i = 0; i < rows.outer; ++i) {
    std::fill(at + i * step + begin * rows.inner, at + (i + 1) * step, rows.word);
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
  if (offsets != nullptr && writer.rows_behind != nullptr && writer.launch_kernel != nullptr) {
    Untouched of = rows;
    void* parameters[] = {&at, &offsets, &of.last, &of.outer, &of.rows, &of.inner, &of.word};
    return writer.launch_kernel(writer.rows_behind, kBlocks, 1, 1, kThreads, 1, 1, 0, stream,
                                parameters, nullptr) == 0;
  }
  return writer.fill_words != nullptr && writer.fill_words(reinterpret_cast<std::uintptr_t>(at),
                                                           rows.word, rows.words, stream) == 0;
}

}  // namespace attune::calls
