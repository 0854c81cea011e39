// What a step hands to the model: rows of tokens, of any number of sequences one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace serve {

// The columns of `sees`, as attention.yaml has them: tokens that a sequence may bring in a step.
constexpr std::size_t kSeenColumns = 64;

// The most that a step may have. Launches always have this size, so that one kernel and one
// workspace serve all steps, and a GPU could replay them as a graph.
struct Capacity {
  std::size_t sequences, rows, keys;  // keys: of one sequence
  std::size_t pages_per_sequence;
};

struct Batch {
  // Of each row.
  std::vector<std::int32_t> tokens, positions;
  std::vector<std::uint8_t> sees;  // [rows, kSeenColumns]
  // Of each sequence; those that are not there have no rows and no keys.
  std::vector<std::int32_t> cu_q;        // [sequences + 1]
  std::vector<std::int32_t> used_kv;     // [sequences], with the step's own
  std::vector<std::int32_t> page_table;  // [sequences, pages_per_sequence], filled up with -1

  std::size_t rows() const { return tokens.size(); }
};

}  // namespace serve
