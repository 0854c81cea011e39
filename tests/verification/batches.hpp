// Batch-invariant specs on any device: sequences that are launched alone, in batches and in parts.
#pragma once

#include <cstdint>
#include <random>

#include "runtime/device/device.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune::batches {

// Lines of a spec after name, dtype and layout.
inline constexpr const char* kSpecs[] = {
    "head_dim: 16\nmask: causal and q_pos - kv_idx < 700\n",
    "head_dim: 32\nmask: causal and (q_pos - kv_idx < 700 or kv_idx < 4)\nsink: 0.25 * h\n",
    "head_dim: 16\nmask: causal\nscore: 20 * tanh(score / 20) - 0.01 * h * (q_pos - kv_idx)\n",
    // References that are raised again and again.
    "head_dim: 64\nmask: causal\nscore: 12 * score + 0.02 * kv_idx\n",
};
// A tree of drafted tokens, of packed layouts: what a query sees is its batch's own.
inline constexpr const char* kTree =
    "head_dim: 16\n"
    "mask: kv_idx < kv_len - q_len or sees[q_idx, kv_idx - (kv_len - q_len)]\n"
    "tensors: {sees: {dtype: bool, dims: [q_len, 64]}}\n";

AttentionSpec spec_of(const char* dtype, const char* layout, const char* lines);

// A number of random batches, of other sequences and other padding each, in pages of other sizes
// and numbers; dense: of copies of its lengths. In each a sequence that has been launched alone
// must have the same O and LSE to the bit. `alone_by`: the kernel that it has been launched alone
// by, where that is another one. The text says where they differ; empty: nowhere.
std::string differs_in_batches(Device& device, const LoadedKernel& kernel,
                               const AttentionSpec& spec, int count, std::uint64_t seed,
                               const LoadedKernel* alone_by = nullptr);

// The last queries of a chunk on their own, and each as the only one of a sequence that ends with
// it, against the whole chunk. For masks and scores that take positions from q_pos. `parts_by`: the
// kernel that parts are launched by, where that is another one.
std::string differs_in_parts(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                             std::uint64_t seed, const LoadedKernel* parts_by = nullptr);

}  // namespace attune::batches
