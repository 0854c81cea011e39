// What the sm80 family's plans must know of a dtype: how its rows lie in shared memory and what its
// products cost.
#pragma once

#include "generator/plan/plan.hpp"

namespace attune {

struct Sm80Elements {
  int bytes;                // of an element
  int step_columns;         // of a product's step: its fragments are one register a row and column
  int least_keys;           // of a kv tile; of queries or keys that backward kernels walk at a time
  int least_dropped_keys;   // of a chunk under dropout, whose random draw serves 32 keys
  int longest_chunk;        // keys whose scores registers have room for
  int most_chunks;          // in one loop body
  int most_key_groups;      // of warps that have the same rows
  int score_registers;      // of 16 x 8 scores and what their products need beside them, in fours
  int other_registers;      // of operands in parts, and of sums that wait to be added up
  double matrix_clocks;     // of a product, relative to those of 2-byte elements
  double split_clocks;      // of a scheduler, for an element of a fragment that becomes tf32
  int row_alignment_bytes;  // of rows in shared memory

  // Fragments that ptxas finds room for beside the rest, of fp32.
  int most_registers(bool q_in_registers, int blocks) const;
  // Of a row in shared memory, padding included.
  int row_bytes(int head_dim) const;
  // OK, or kUnsupported: copies give each 16-byte unit of a row a thread of its own.
  Status check_copies(const AttentionSpec& spec, int threads) const;
};

// kUnsupported: the dtype has no products on matrix units of the family.
Status check_sm80_dtype(const AttentionSpec& spec);
// Of a dtype that has.
Sm80Elements sm80_elements(const AttentionSpec& spec);

// Of the head of an fp32 kernel; empty for other dtypes.
std::string sm80_element_constants(const AttentionSpec& spec);

}  // namespace attune
