// Where the sequences of a made-up problem lie.
#pragma once

#include <random>

#include "runtime/reference/oracle.hpp"

namespace attune {

// Of a spec with layout thd. Where nothing is said of their lengths they end anywhere; else
// queries lie as keys do where there are as many, and as draw_paged_sequences() says elsewhere.
HostSequences draw_packed_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                    std::mt19937_64& random);

// Of a spec with layout paged. Few queries are as many of each sequence, as they are when all of
// them are written on. More come in any lengths, or, where lengths of keys are said, in proportion
// to these. Where they are not, the first sequence has all the keys that there is room for, others
// at least kLeastUnsaid of them and what all begin with.
HostSequences draw_paged_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                   std::mt19937_64& random);

}  // namespace attune
