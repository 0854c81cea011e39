#include "runtime/device/rows_outside.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "runtime/device/cuda_context.hpp"
#include "runtime/device/cuda_function.hpp"

namespace attune {
namespace {

constexpr int kFillThreads = 256, kFillCtas = 264;          // mostly there is nothing to write
constexpr std::int64_t kMostWords = std::int64_t{1} << 31;  // the kernel counts in 32 bits

// The kernel's parameters.
struct FillParams {
  std::uint32_t* at;
  const std::int32_t* offsets;
  std::uint32_t last, outer, rows, inner, word;
};
static_assert(sizeof(FillParams) == 40 && offsetof(FillParams, word) == 32);

// So small that every driver compiles it in no time, and no compiler of ours has to be there.
constexpr char kFillPtx[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry attune_rows_outside(.param .align 8 .b8 of[40])
{
    .reg .pred %done, %is_before;
    .reg .b32 %first, %end, %last, %outer, %rows, %inner, %word, %before, %outside, %total, %i, %step;
    .reg .b32 %block, %thread, %size, %whole, %between, %part, %skipped, %rest, %place;
    .reg .b64 %at, %offsets, %address;
    ld.param.u64 %at, [of];
    ld.param.u64 %offsets, [of+8];
    ld.param.u32 %last, [of+16];
    ld.param.u32 %outer, [of+20];
    ld.param.u32 %rows, [of+24];
    ld.param.u32 %inner, [of+28];
    ld.param.u32 %word, [of+32];
    cvta.to.global.u64 %at, %at;
    cvta.to.global.u64 %offsets, %offsets;
    ld.global.b32 %first, [%offsets];
    mul.wide.u32 %address, %last, 4;
    add.s64 %address, %address, %offsets;
    ld.global.b32 %end, [%address];
    max.s32 %end, %end, 0;
    min.s32 %end, %end, %rows;
    max.s32 %first, %first, 0;
    min.s32 %first, %first, %end;
    mul.lo.u32 %before, %first, %inner;
    sub.s32 %between, %end, %first;
    sub.s32 %outside, %rows, %between;
    mul.lo.u32 %between, %between, %inner;
    mul.lo.u32 %outside, %outside, %inner;
    mul.lo.u32 %total, %outside, %outer;
    mul.lo.u32 %whole, %rows, %inner;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %size, %thread;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %size;
next:
    setp.ge.u32 %done, %i, %total;
    @%done bra last_one;
    div.u32 %part, %i, %outside;
    mul.lo.u32 %skipped, %part, %outside;
    sub.u32 %rest, %i, %skipped;
    mad.lo.u32 %place, %part, %whole, %rest;
    setp.lt.u32 %is_before, %rest, %before;
    @!%is_before add.u32 %place, %place, %between;
    mul.wide.u32 %address, %place, 4;
    add.s64 %address, %address, %at;
    st.global.b32 [%address], %word;
    add.u32 %i, %i, %step;
    bra next;
last_one:
    ret;
}
)";

}  // namespace

void fill_on_host(const RowsOutside& rows) {
  std::int64_t first = 0, end = 0;  // the rows that sequences have
  if (rows.offsets != nullptr) {
    end = std::clamp<std::int64_t>(rows.offsets[rows.last], 0, rows.rows);
    first = std::clamp<std::int64_t>(rows.offsets[0], 0, end);
  }
  std::uint32_t* at = rows.at;
  for (std::int64_t i = 0; i < rows.outer; ++i, at += rows.rows * rows.inner) {
    std::fill(at, at + first * rows.inner, rows.word);
    std::fill(at + end * rows.inner, at + rows.rows * rows.inner, rows.word);
  }
}

const LoadedFunction* CudaRowsOutside::kernel() {
  const std::lock_guard lock(mutex_);
  if (kernel_ == nullptr && std::has_single_bit(++misses_)) {
    auto loaded = CudaFunction::load(
        api_, context_, {"attune_rows_outside", kFillThreads},
        std::span(reinterpret_cast<const std::uint8_t*>(kFillPtx), sizeof kFillPtx));
    if (loaded.ok()) kernel_ = *std::move(loaded);
  }
  return kernel_.get();
}

Status CudaRowsOutside::fill(const RowsOutside& rows, StreamHandle stream) {
  if (rows.offsets != nullptr && rows.words() < kMostWords) {
    if (const LoadedFunction* const loaded = kernel()) {
      const auto narrow = [](std::int64_t size) { return static_cast<std::uint32_t>(size); };
      const FillParams params{
          rows.at,           rows.offsets,       narrow(rows.last), narrow(rows.outer),
          narrow(rows.rows), narrow(rows.inner), rows.word};
      return loaded->launch(&params, kFillCtas, stream);
    }
  }
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  return cuda_status(api_,
                     api_.memset_words_async(device_address(rows.at), rows.word,
                                             static_cast<std::size_t>(rows.words()),
                                             static_cast<CUstream>(stream)),
                     "cuMemsetD32Async");
}

}  // namespace attune
