// q, k, v, o and their gradients: pointers and strides of the caller, checked.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"
#include "templates/params.h"

namespace attune {

// A tensor [batch, seq, heads, dim] in whatever order its strides say, as the caller names it.
struct Operand {
  const char* name;
  const void* data;
  const att_strides& strides;  // all zero: contiguous in the layout
  std::int64_t batch, seq, heads;
  int dim;
  bool is_written = false;  // each element needs an address of its own
};

// kBadInput unless `pointer` is aligned to `bytes` and not null.
Status check_pointer(const char* name, const void* pointer, int bytes);

// Checks alignment, extent, and that strides mean what they can; then they are in `strides`.
// Allocates only when it fails.
Status fill_operand(DType dtype, Layout layout, const Operand& operand, att::Strides* strides);
inline Status fill_operand(const AttentionSpec& spec, const Operand& operand,
                           att::Strides* strides) {
  return fill_operand(spec.dtype, spec.layout, operand, strides);
}

// Where something that a launch reads or writes begins.
struct Place {
  const char* name;
  const void* at;
};
// Those that there are: nulls are left out.
class Places {
 public:
  Places(std::initializer_list<Place> places) {
    for (const Place& place : places) add(place);
  }
  void add(const Place& place) {
    if (place.at == nullptr) return;
    assert(count_ < std::size(places_));
    places_[count_++] = place;
  }
  operator std::span<const Place>() const { return {places_, count_}; }

 private:
  static constexpr int kMostOperands = 7;  // beside tensors
  Place places_[kMostOperands + att::kMaxTensors];
  std::size_t count_ = 0;
};
// kBadInput where something that is written begins where something else does. That is as far as a
// look goes: tensors that are slices of one may lie between each other's rows.
Status check_apart(std::span<const Place> written, std::span<const Place> read);

}  // namespace attune
