// How long sequences are beside each other: `--lengths "uniform(0.3, 1)"`. Problems that are made
// up, to tune, to time, to run, take the lengths of packed and paged sequences from it; kernels and
// hashes do not see it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/spec/call_form.hpp"
#include "generator/support/result.hpp"

namespace attune {

enum class LengthsKind : std::uint8_t {
  kUnsaid,   // nothing is known
  kEqual,    // all alike
  kUniform,  // (low, high): evenly spread between shares of the longest that there may be
  kSkewed,   // (longest): the longest has this share of all keys, the others are alike
  kGiven,    // `given`, one by one
};

struct Lengths {
  LengthsKind kind = LengthsKind::kUnsaid;
  CallValues arguments{};           // as many as the kind has
  std::vector<std::int32_t> given;  // of kGiven: keys of each sequence
  bool operator==(const Lengths&) const = default;
};

// "uniform(low=0.3, high=1)", "4096, 512, 512"; "" of kUnsaid.
std::string to_string(const Lengths& lengths);

// What to_string() makes, arguments as those of samples; a list may be of blanks and line ends as
// well. Fails with "lengths-syntax", "lengths-unknown", "lengths-argument" or, of a list,
// "lengths-list".
Result<Lengths> parse_lengths(std::string_view text);

}  // namespace attune
