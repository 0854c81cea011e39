// Rows of a tensor that no sequence has, and what fills them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"

namespace attune {

// Of a contiguous tensor [outer, rows, inner words]: the rows before offsets[0], and those from
// offsets[last] on. Fewer words than 2^63.
struct RowsOutside {
  std::uint32_t* at;
  const std::int32_t* offsets;  // of the device; null: all rows
  std::int32_t last;
  std::uint32_t word;  // what they are filled with
  std::int64_t outer, rows, inner;

  std::int64_t words() const { return outer * rows * inner; }
};

void fill_on_host(const RowsOutside& rows);

// On a GPU, by a kernel that its driver compiles at the first call. Where it takes none, and where
// there are 2^31 words or more, all rows are filled. A driver that took none (memory may have been
// short) is asked again at the 2nd call, the 4th, the 8th and so on, so that one that never takes
// it is not asked at every launch. Thread-safe.
class CudaRowsOutside {
 public:
  CudaRowsOutside(const CudaApi& api, CUcontext context) : api_(api), context_(context) {}

  // Enqueues. A capture goes on, whatever is loaded for it.
  Status fill(const RowsOutside& rows, StreamHandle stream);

 private:
  const LoadedFunction* kernel();  // null: there is none yet

  const CudaApi& api_;
  const CUcontext context_;
  std::mutex mutex_;
  unsigned misses_ = 0;  // calls that found no kernel
  std::unique_ptr<LoadedFunction> kernel_;
};

}  // namespace attune
