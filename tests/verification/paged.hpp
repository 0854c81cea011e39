// Paged sequences on a device: random problems, and caches of every order.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tests/verification/packed.hpp"

namespace attune::paged {

// Specs with layout paged, after name and dtype.
inline constexpr const char* kSpecs[] = {
    "layout: paged\nhead_dim: 64\n",
    "layout: paged\nhead_dim: 128\nmask: causal\n",
    "layout: paged\nhead_dim: 64\nmask: causal and (q_pos - kv_idx < 100 or kv_idx < 4)\n",
    "layout: paged\nhead_dim: 64\nmask: kv_idx < kv_len - q_len or sees[q_idx, kv_idx - (kv_len - "
    "q_len)]\n"
    "tensors: {sees: {dtype: bool, dims: [q_len, 64]}}\n",
    "layout: paged\nhead_dim: 80\nmask: causal and doc[b, q_pos] == doc[b, kv_idx]\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n",
    "layout: paged\nhead_dim: 64\nscore: score + bias[h, q_idx] + tail[kv_idx]\n"
    "tensors: {bias: {dtype: float32, dims: [heads, q_len]},\n"
    "          tail: {dtype: float32, dims: [kv_len]}}\n",
    "layout: paged\nhead_dim: 128\nmask: causal\nscore: 20 * tanh(score / 20)\n",
    "layout: paged\nhead_dim: 64\nmask: causal\nscore: score - slope[h] * (q_pos - kv_idx)\n"
    "tensors: {slope: {dtype: float32, dims: [heads]}}\n",
    "layout: paged\nhead_dim: 96\nmask: causal\nsink: sinks[h]\n"
    "tensors: {sinks: {dtype: float32, dims: [heads]}}\n",
    "layout: paged\nhead_dim: 64\nmask: causal\ndropout: 0.2\n",
    "layout: paged\nhead_dim: {qk: 192, v: 128}\nmask: causal\nsoftmax_scale: float\n",
};

// Sequences of known lengths in pages of `page_size`, shuffled; NaN where no key lies.
// `queries`, `keys`: of each sequence; `room`: the most keys that one may have.
HostProblem paged_problem(const AttentionSpec& spec, const ProblemShape& shape,
                          const std::vector<std::int32_t>& queries,
                          const std::vector<std::int32_t>& keys, std::int64_t page_size,
                          std::uint64_t seed);

// Up to 12 sequences of 0 to some hundred keys, now and then up to `longest`, with one query each,
// or few, or as many as keys, in pages of 1, 3, 16, 64 or 256 rows; some have their first pages in
// common, some have fewer queries than the offsets leave.
HostProblem random_paged(const AttentionSpec& spec, std::mt19937_64& random,
                         std::int32_t longest = 2000);

// Pages that no sequence has, of NaN, until there are `count`.
void add_idle_pages(const AttentionSpec& spec, HostProblem& problem, std::int64_t count);

// Orders in which caches lie in memory.
enum class CacheOrder {
  kTokensFirst,     // [pages, page_size, kv_heads, dim]
  kHeadsFirst,      // [pages, kv_heads, page_size, dim]
  kInterleaved,     // [pages, 2, page_size, kv_heads, dim], k and v; of one dim
  kPagesFarApart,   // pages of other layers in between
  kValuesOfTheKeys  // v is the first columns of k; make_values_of_keys() makes such a problem
};
inline constexpr CacheOrder kCacheOrders[] = {CacheOrder::kTokensFirst, CacheOrder::kHeadsFirst,
                                              CacheOrder::kInterleaved, CacheOrder::kPagesFarApart};
packed::Cache cache_in(CacheOrder order, const AttentionSpec& spec, const HostProblem& problem);

// V of the problem becomes the first columns of K, of which there must be as many.
void make_values_of_keys(const AttentionSpec& spec, HostProblem& problem);

}  // namespace attune::paged
