// What the lengths of sequences are like, so coarsely that a loop of decoding steps seldom changes
// it: what the tuning cache tells packed and paged problems of one shape apart by.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "generator/spec/spec.hpp"

namespace attune {

// The numbers are powers of the square root of 2.
struct LengthClass {
  double longest =
      -1;  // the longest sequence over the mean one: 1 where all are alike; < 0: unknown
  double filled = -1;  // keys of all sequences over the rows that there is room for
  int page_size = 0;   // 0: no pages
  bool operator==(const LengthClass&) const = default;
  bool is_known() const { return longest > 0 && filled > 0; }
};

// Of sequences of so many keys, which have room for `room` keys together.
LengthClass length_class(std::span<const std::int32_t> keys, std::int64_t room, int page_size);

// Of a problem that is made up for the spec. {} where its layout has no lengths.
LengthClass drawn_class(const AttentionSpec& spec, const ProblemShape& shape);

// "lengths=uniform(low=0.3, high=1); page=64": what is said of made-up sequences beyond what is
// drawn when nobody says; empty: nothing is.
std::string lengths_label(const AttentionSpec& spec);
// The same of sequences that a host brought.
std::string given_lengths_label(std::span<const std::int32_t> queries,
                                std::span<const std::int32_t> keys, int page_size);

}  // namespace attune
