// Packed sequences on a device: random problems, and a launch whose every byte is accounted for.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune::packed {

// Specs with layout thd, after name and dtype.
inline constexpr const char* kSpecs[] = {
    "layout: thd\nhead_dim: 64\n",
    "layout: thd\nhead_dim: 128\nmask: causal\n",
    "layout: thd\nhead_dim: 64\nmask: sliding_window(100)\n",
    "layout: thd\nhead_dim: 80\nmask: prefix_lm(prefix[b])\n"
    "tensors: {prefix: {dtype: int32, dims: [batch]}}\n",
    "layout: thd\nhead_dim: 64\nmask: causal and (kv_idx >= cut[b] or q_pos < cut[b])\n"
    "tensors: {cut: {dtype: int32, dims: [batch]}}\n",
    "layout: thd\nhead_dim: 64\nmask: causal and doc[q_pos] == doc[kv_idx]\n"
    "tensors: {doc: {dtype: int32, dims: [kv_len]}}\n",
    "layout: thd\nhead_dim: 64\nscore: score + bias[h, q_idx] + tail[kv_idx + 1]\n"
    "tensors: {bias: {dtype: float32, dims: [heads, q_len]},\n"
    "          tail: {dtype: float32, dims: [kv_len]}}\n",
    "layout: thd\nhead_dim: 128\nmask: causal\nscore: 20 * tanh(score / 20)\n",
    "layout: thd\nhead_dim: 64\nscore: score - slope[h] * abs(q_pos - kv_idx)\n"
    "tensors: {slope: {dtype: float32, dims: [heads]}}\n",
    "layout: thd\nhead_dim: 64\nmask: causal\ndropout: 0.2\nsink: sinks[h]\n"
    "tensors: {sinks: {dtype: float32, dims: [heads]}}\n",
    "layout: thd\nhead_dim: {qk: 192, v: 128}\nmask: causal\nsoftmax_scale: float\n",
    "layout: thd\nhead_dim: 72\nmask: causal\n",
};

// Up to `most` sequences of fewer than `longest` tokens, keys as queries, or up to 200 more of
// them, or few queries; now and then tokens behind the last sequence, and lengths that are less
// than what the offsets leave.
HostProblem random_packed(const AttentionSpec& spec, std::mt19937_64& random, int most = 20,
                          int longest = 701);
// The same of sequences that are known.
HostProblem packed_problem(const AttentionSpec& spec, const ProblemShape& shape,
                           HostSequences sequences, std::uint64_t seed);
// What belongs to no sequence becomes NaN, and so does all of sequence `foreign`, if that is not
// negative.
void spoil_foreign(const AttentionSpec& spec, HostProblem& problem, int foreign);

// K and V of a paged problem as they lie in memory.
struct Cache {
  std::vector<std::byte> k, v;     // empty v: it lies in the memory of k
  std::size_t k_at = 0, v_at = 0;  // bytes before the first element
  att::Strides k_stride = {}, v_stride = {};
};

// Launches and returns the rows; `cache`: of a paged problem, else contiguous pages. The error says
// what was wrong: the launch, or a byte that was written and is no row's: of O or LSE, of an input
// (of a cache also in pages that no table has), or of what lies around any buffer.
Result<HostOutput> run_packed(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                              const HostProblem& problem, const std::vector<Row>& rows,
                              const Cache* cache = nullptr);
// Launches with the offsets and lengths as they stand, whatever they are.
Status run_garbage(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                   const HostProblem& problem);

}  // namespace attune::packed
