// Paged sequences that begin with the same pages.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tests/verification/paged.hpp"

namespace attune::shared_prefix {

// Specs, after name and dtype: those of templates/kernels/shared_prefix_forward.cuh, whose masks
// and scores tell sequences, heads and positions apart.
inline constexpr const char* kSpecs[] = {
    "head_dim: 128\n",
    "head_dim: 128\nmask: causal\n",
    "head_dim: 64\nmask: causal and (q_pos - kv_idx < 700 or kv_idx < 4)\n",
    "head_dim: 64\nmask: kv_idx < kv_len - q_len or sees[q_idx, kv_idx - (kv_len - q_len)]\n"
    "tensors: {sees: {dtype: bool, dims: [q_len, 64]}}\n",
    "head_dim: 80\nmask: causal and doc[b, q_pos] == doc[b, kv_idx]\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n",
    "head_dim: 64\nmask: causal and kv_idx >= cut[b]\nscore: score + bias[h, q_idx] + tail[b, "
    "kv_idx]\n"
    "tensors: {bias: {dtype: float32, dims: [heads, q_len]},\n"
    "          tail: {dtype: float32, dims: [batch, kv_len]},\n"
    "          cut: {dtype: int32, dims: [batch]}}\n",
    "head_dim: 128\nmask: causal and q_pos - kv_idx < 300 * (h + 1)\n"
    "score: score - slope[h] * (q_pos - kv_idx)\n"
    "tensors: {slope: {dtype: float32, dims: [heads]}}\n",
    "head_dim: 96\nmask: causal\nscore: 20 * tanh(score / 20)\nsink: sinks[h]\n"
    "tensors: {sinks: {dtype: float32, dims: [heads]}}\n",
    "head_dim: {qk: 192, v: 128}\nmask: causal\nsoftmax_scale: float\n",
};
// The same as YAML, with the key.
std::string yaml_of(const char* dtype, const char* lines);

// Sequences in runs that have their first pages in common, some of a run more than others; most
// with one to four queries, some with none or too many to share; NaN where no key lies.
HostProblem random_shared(const AttentionSpec& spec, std::mt19937_64& random);

// Each sequence has the first `common` keys' whole pages of the first one.
HostProblem shared_problem(const AttentionSpec& spec, const ProblemShape& shape,
                           const std::vector<std::int32_t>& queries,
                           const std::vector<std::int32_t>& keys, std::int64_t page_size,
                           std::int64_t common, std::uint64_t seed);

// Sequences that share pages which are none of the cache, and lengths of no caller.
HostProblem garbage_shared(const AttentionSpec& spec, int run, std::mt19937_64& random);

}  // namespace attune::shared_prefix
