// What is said of made-up sequences, as one process hands it on to another.
#pragma once

#include <string>

#include "generator/spec/spec.hpp"

namespace attune {

struct SequenceWords {
  std::string lengths;  // as parse_lengths() takes them; empty: nothing is said
  int page_size = AttentionSpec{}.page_size;
  int shared_prefix = 0;
  bool operator==(const SequenceWords&) const = default;
};

SequenceWords sequence_words(const AttentionSpec& spec);
// Puts them in the place of what the spec says itself.
Status take_words(const SequenceWords& words, AttentionSpec& spec);

}  // namespace attune
