#include "runtime/capi/operand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>

#include "runtime/capi/sizes.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

constexpr int kAlignmentBytes = 16;

struct StridedDim {
  std::int64_t size;
  std::int64_t stride;  // as far as it is stepped; elements, not negative
};

Error bad_strides(const Operand& operand, const att::Strides& strides, const char* problem) {
  return bad_argument(
      fmt::format("{}: `{}`", problem, operand.name),
      fmt::format(
          "its (batch, seq, head) strides are ({}, {}, {}) elements, its sizes ({}, {}, {})",
          strides.batch, strides.seq, strides.head, operand.batch, operand.seq, operand.heads));
}

// Sufficient, and what every view of a dense tensor has: sorted by stride, each dim steps over all
// that the ones before it reach.
bool has_an_address_each(std::array<StridedDim, 3> dims, std::int64_t dim) {
  std::ranges::sort(dims, {}, &StridedDim::stride);
  std::int64_t reach = dim;
  for (const auto& [size, stride] : dims) {
    if (size == 1) continue;
    if (stride < reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

}  // namespace

Status check_pointer(const char* name, const void* pointer, int bytes) {
  if (pointer == nullptr) return bad_argument(fmt::format("`{}` is null", name));
  if (std::bit_cast<std::uintptr_t>(pointer) % static_cast<unsigned>(bytes) != 0) {
    return bad_argument(fmt::format("`{}` is not aligned to {} bytes", name, bytes));
  }
  return ok_status();
}

Status fill_operand(DType dtype, Layout layout, const Operand& operand, att::Strides* strides) {
  ATT_CHECK(check_pointer(operand.name, operand.data, kAlignmentBytes));
  const auto& [batch, seq, head] = operand.strides;
  if (batch == 0 && seq == 0 && head == 0) {
    *strides = contiguous_strides(layout, operand.seq, operand.heads, operand.dim);
  } else {
    // A dim of size 1 is never stepped, so its stride does not matter.
    *strides = {operand.batch == 1 ? 0 : batch, operand.seq == 1 ? 0 : seq,
                operand.heads == 1 ? 0 : head};
    if (seq != 0 && batch == 0 && head == 0 && operand.batch > 1 && operand.heads > 1) {
      return bad_strides(operand, *strides, "the seq stride is given without the others");
    }
  }
  const int bytes = element_bytes(dtype);
  std::array<StridedDim, 3> dims = {{{operand.batch, strides->batch},
                                     {operand.seq, strides->seq},
                                     {operand.heads, strides->head}}};
  std::int64_t extent = operand.dim;
  for (auto& [size, stride] : dims) {
    if (size == 1) continue;
    // Bounded first: what follows cannot overflow then, and the least integer has no negative.
    if (stride > kMaxTensorBytes || stride < -kMaxTensorBytes) {
      return bad_strides(operand, *strides, "strides reach beyond any address space");
    }
    if (stride * bytes % kAlignmentBytes != 0) {
      return bad_strides(operand, *strides, "a stride is not a multiple of 16 bytes");
    }
    stride = std::abs(stride);
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(stride, size - 1, &reach) ||
        __builtin_add_overflow(extent, reach, &extent) || extent > kMaxTensorBytes / bytes) {
      return bad_strides(operand, *strides, "strides reach beyond any address space");
    }
  }
  if (operand.is_written && !has_an_address_each(dims, operand.dim)) {
    return bad_strides(operand, *strides, "strides give two elements one address");
  }
  return ok_status();
}

Status check_apart(std::span<const Place> written, std::span<const Place> read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (const std::span<const Place> others : {written.subspan(i + 1), read}) {
      for (const Place& other : others) {
        if (other.at != written[i].at) continue;
        return bad_argument(fmt::format("`{}` lies where `{}` does", written[i].name, other.name),
                            "what a launch writes must not lie where anything else of it does");
      }
    }
  }
  return ok_status();
}

}  // namespace attune
