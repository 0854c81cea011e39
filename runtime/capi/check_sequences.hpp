// Whether the offsets, lengths and page numbers of a launch are such as a caller can mean. Kernels
// stay within the caller's memory whatever stands there; what they make of a wrong number is
// numbers without meaning, and this says which one it is.
#pragma once

#include <cstdint>
#include <span>

#include "generator/support/result.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {

// Of one launch, in the host's memory. Lengths are in tokens.
struct GivenSequences {
  std::int64_t batch = 0, q_len = 0, kv_len = 0;  // of the launch's shape
  // Empty: the launch has none.
  std::span<const std::int32_t> cu_q, cu_kv;      // batch + 1 of each
  std::span<const std::int32_t> used_q, used_kv;  // batch of each
  std::span<const std::int32_t> page_table;       // batch * pages.per_sequence
  PageSizes pages = {};                           // those of a sequence have room for kv_len keys
  // Whether it looks up where new tokens go, the last keys of a sequence, and no others.
  bool appends = false;
};

// kBadInput, of what is wrong first, offsets before all else, then sequence by sequence:
//   offsets-out-of-range  `cu_q` or `cu_kv` does not begin with 0, or goes on behind the last token
//   offsets-descend       a sequence ends before it begins
//   length-out-of-range   `used_q` or `used_kv` is negative, or more than the offsets hold or, with
//                         pages, than shape.kv_len; or there are more new tokens than keys
//   page-out-of-range     an entry of the table is neither a page of the cache nor -1
//
// Only what the launch acts on is looked at: of the table the entries in whose pages keys lie, of
// sequences that have queries, or new tokens. An entry of -1 is no page, which is what engines pad
// with, and no error wherever it stands; nor is a length of 0, of new tokens without keys either.
//
// Pure; allocates only when it fails.
Status check_sequences(const GivenSequences& given);

}  // namespace attune
