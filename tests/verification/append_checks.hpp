// New keys and values into caches of every order, on a device, against an fp64 oracle. All memory
// that a launch could reach holds a pattern, and what is not meant to be written must keep it.
#pragma once

#include <attune/attune.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/device.hpp"

namespace attune::append_test {

// Orders in which a cache's pages, or sequences, lie in memory.
enum class Order {
  kTokensFirst,  // [pages, page_size, kv_heads, dim]
  kHeadsFirst,   // [pages, kv_heads, page_size, dim]
  kFarApart      // as the first, k beside v, other layers' pages in between
};
inline constexpr Order kOrders[] = {Order::kTokensFirst, Order::kHeadsFirst, Order::kFarApart};

struct Problem {
  att_append_options options = {};
  int layout = ATT_PAGED;
  Order order = Order::kTokensFirst;
  att_shape shape = {};
  std::int64_t page_size = 0, pages = 0, pages_per_sequence = 0;
  std::vector<std::int32_t> cu_q, used_q, cu_kv, used_kv, table, positions;  // empty: null
  std::int64_t table_positions = 0;  // of cosines and sines; 0: none
  bool fused = false;                // q, k and v are columns of one tensor
  bool in_place = false;             // q_out is q
  bool without_q = false, without_v = false;
};

// Kernels that differ in what is particular to some: dtypes, chunks that are whole, short and of
// one element, columns that are not turned, v of another dim, no rotation; bases and factors.
std::vector<att_append_options> various_options();
// `head_dim_qk` of q, k and v.
att_append_options options_of(int dtype, int rope, int head_dim_qk = 128, int rotary_dim = 0);

// Sequences with `tokens` new ones and `keys` with these, in shuffled pages, some of which no table
// names; entries behind a sequence's last page are -1.
Problem paged_problem(const att_append_options& options, const std::vector<std::int32_t>& tokens,
                      const std::vector<std::int32_t>& keys, std::int64_t page_size,
                      std::mt19937_64& random);
// Lengths, page size, order and the rest drawn.
Problem random_problem(const att_append_options& options, int layout, std::mt19937_64& random);

// The last tokens of 2^20, the pages before them left out; and tokens that have no page.
Problem far_problem(const att_append_options& options, std::mt19937_64& random);
// Whatever stands in offsets, lengths and tables: rows outside of the cache, at the ends of int32,
// offsets that descend.
std::vector<Problem> hostile_problems(const att_append_options& options, std::mt19937_64& random);

using LaunchFunction = std::function<att_status(const att_append_kernel*, const att_append_args*)>;

// Launches it, on the default stream unless `launch` is given; empty when every element is what the
// oracle says, else what is wrong. `runtime` is of `device`.
std::string judge(Device& device, att_runtime* runtime, const Problem& problem, std::uint64_t seed,
                  const LaunchFunction& launch = {});

}  // namespace attune::append_test
