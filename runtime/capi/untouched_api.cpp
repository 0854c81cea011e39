// att_fill_untouched.
#include <cstddef>
#include <cstdint>

#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/capi/structs.hpp"
#include "runtime/device/rows_outside.hpp"

using namespace attune;

namespace {

Status read_rows(const att_untouched_args& args, RowsOutside* rows) {
  std::int64_t words = 0;
  if (args.outer < 0 || args.rows < 0 || args.inner < 0 || args.sequences < 0 ||
      __builtin_mul_overflow(args.outer, args.rows, &words) ||
      __builtin_mul_overflow(words, args.inner, &words)) {
    return bad_argument("`outer`, `rows`, `inner` and `sequences` are no sizes of a tensor");
  }
  if (words != 0 && args.tensor == nullptr) return null_argument("tensor");
  if (reinterpret_cast<std::uintptr_t>(args.tensor) % alignof(std::uint32_t) != 0)
    return bad_argument("`tensor` is not aligned to 4 bytes");
  *rows = {static_cast<std::uint32_t*>(args.tensor),
           args.cu,
           args.sequences,
           args.word,
           args.outer,
           args.rows,
           args.inner};
  return ok_status();
}

}  // namespace

extern "C" att_status att_fill_untouched(const att_kernel* kernel, const att_untouched_args* args,
                                         void* stream) {
  return guarded([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    if (args == nullptr) return null_argument("args");
    att_untouched_args known;
    ATT_CHECK(read_struct("args", args, sizeof known, &known));
    RowsOutside rows;
    ATT_CHECK(read_rows(known, &rows));
    if (rows.words() == 0) return ok_status();
    return from_handle(kernel)->device().fill_rows_outside(rows, stream);
  });
}
