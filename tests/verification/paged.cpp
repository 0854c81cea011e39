#include "tests/verification/paged.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/reference/cache_scales.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/pages.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune::paged {
namespace {

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

// What no key lies in, and what is no part of the cache.
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// Normal values, a prime number of them over and over: rows all differ, and to draw every one of
// millions would take longer than all that is done with them.
void draw(const AttentionSpec& spec, std::int64_t count, std::mt19937_64& random,
          std::vector<double>& values) {
  constexpr std::size_t kDrawn = 131071;
  std::normal_distribution<double> normal;
  values.resize(size(count));
  const std::size_t drawn = std::min(kDrawn, values.size());
  for (std::size_t i = 0; i < drawn; ++i) values[i] = round_to(spec.dtype, normal(random));
  for (std::size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
}

// K and V for the pages that the problem has.
void fill_pages(const AttentionSpec& spec, HostProblem& problem, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::int64_t rows = problem.pages.count * problem.pages.size * problem.shape.kv_heads;
  draw(spec, rows * spec.head_dim_qk, random, problem.k);
  draw(spec, rows * spec.head_dim_v, random, problem.v);
  // Scales of every kind, one after the other.
  if (has_scaled_cache(spec)) {
    quantise_cache(spec, problem, static_cast<ScaleKind>(random() % 4), random);
  }
  spoil_unused(spec, problem);
}

// Values [page, head, row, dim] where their strides say, from `at` on.
void place(const std::vector<double>& values, const HostProblem& problem, std::int64_t dim,
           std::int64_t at, const att::Strides& stride, std::vector<double>& memory) {
  auto from = values.begin();
  for (std::int64_t page = 0; page < problem.pages.count; ++page) {
    for (std::int64_t head = 0; head < problem.shape.kv_heads; ++head) {
      for (std::int64_t row = 0; row < problem.pages.size; ++row, from += dim) {
        const std::int64_t to = at + page * stride.batch + head * stride.head + row * stride.seq;
        std::copy_n(from, dim, memory.begin() + to);
      }
    }
  }
}

}  // namespace

HostProblem paged_problem(const AttentionSpec& spec, const ProblemShape& shape,
                          const std::vector<std::int32_t>& queries,
                          const std::vector<std::int32_t>& keys, std::int64_t page_size,
                          std::uint64_t seed) {
  std::mt19937_64 random(seed);
  // Its keys are replaced: in a row there are fewest to draw.
  AttentionSpec in_a_row = spec;
  in_a_row.layout = Layout::kThd;
  in_a_row.kv_dtype.reset();
  HostProblem problem = random_problem(in_a_row, shape, random());
  problem.sequences = {};
  problem.sequences.cu_q = {0};
  for (const std::int32_t count : queries) {
    problem.sequences.cu_q.push_back(problem.sequences.cu_q.back() + count);
  }
  problem.sequences.used_kv = keys;
  problem.pages = draw_pages(keys, shape.kv_len, page_size, random);
  fill_pages(spec, problem, random());
  return problem;
}

HostProblem random_paged(const AttentionSpec& spec, std::mt19937_64& random,
                         std::int32_t longest_of_all) {
  const auto below = [&](std::int32_t bound) {
    return std::uniform_int_distribution<std::int32_t>(0, bound - 1)(random);
  };
  const std::int32_t batch = 1 + below(12);
  constexpr int kHeads[][2] = {{1, 1}, {2, 2}, {4, 2},  {6, 2}, {4, 1},
                               {8, 1}, {7, 1}, {16, 1}, {24, 2}};
  constexpr std::int64_t kPageSizes[] = {1, 3, 16, 32, 48, 64, 256};
  const auto& [heads, kv_heads] = kHeads[below(9)];
  const std::int64_t page_size = kPageSizes[below(7)];
  const std::int32_t kind = below(3);  // one query each, few, or as many as keys
  const std::int32_t longest = below(8) == 0 && kind < 2 ? longest_of_all + 1
                               : below(2) == 0           ? 701
                                                         : 60;
  const bool shortens = below(3) == 0;
  std::vector<std::int32_t> queries, keys, used;
  for (std::int32_t i = 0; i < batch; ++i) {
    keys.push_back(below(4) == 0 ? 0 : below(longest));
    queries.push_back(kind == 0 ? 1 : kind == 1 ? below(8) : keys.back());
    used.push_back(below(queries.back() + 1));
  }
  const std::int32_t all = std::accumulate(queries.begin(), queries.end(), 0);
  const ProblemShape shape{
      .batch = batch,
      .heads = heads,
      .kv_heads = kv_heads,
      .q_len = std::max(1, all + below(2) * below(100)),
      .kv_len = std::max(1, *std::ranges::max_element(keys) + below(2) * below(100))};
  HostProblem problem = paged_problem(spec, shape, queries, keys, page_size, random());
  if (shortens) problem.sequences.used_q = used;
  // What two sequences begin with, as far as both fill their pages.
  HostPages& pages = problem.pages;
  for (std::int32_t b = 1; b < batch; ++b) {
    if (below(4) != 0) continue;
    const std::int64_t common = std::min(keys[size(b)], keys[size(b - 1)]) / page_size;
    std::copy_n(pages.table.begin() + (b - 1) * pages.per_sequence, common,
                pages.table.begin() + b * pages.per_sequence);
  }
  fill_pages(spec, problem, random());
  return problem;
}

void add_idle_pages(const AttentionSpec& spec, HostProblem& problem, std::int64_t count) {
  const std::int64_t rows = count * problem.pages.size * problem.shape.kv_heads;
  problem.pages.count = count;
  problem.k.resize(size(rows * spec.head_dim_qk), kNothing);
  problem.v.resize(size(rows * spec.head_dim_v), kNothing);
}

packed::Cache cache_in(CacheOrder order, const AttentionSpec& spec, const HostProblem& problem) {
  const std::int64_t heads = problem.shape.kv_heads, rows = problem.pages.size;
  const std::int64_t count = problem.pages.count;
  const std::int64_t qk = spec.head_dim_qk, v = spec.head_dim_v;
  const DType dtype = kv_dtype(spec);
  const std::int64_t bytes = element_bytes(dtype);
  const auto strides = [&](std::int64_t dim) {
    if (order == CacheOrder::kHeadsFirst) {
      return att::Strides{rows * heads * dim, dim, rows * dim};
    }
    return att::Strides{rows * heads * dim, heads * dim, dim};
  };
  packed::Cache cache{.k = {}, .v = {}, .k_stride = strides(qk), .v_stride = strides(v)};
  std::int64_t v_at = 0;
  if (order == CacheOrder::kInterleaved) {
    v_at = cache.k_stride.batch;
    cache.k_stride.batch += strides(v).batch;
    cache.v_stride.batch = cache.k_stride.batch;
  }
  if (order == CacheOrder::kPagesFarApart) {
    cache.k_stride.batch *= 5;
    cache.v_stride.batch *= 3;
  }
  const bool one = order == CacheOrder::kInterleaved || order == CacheOrder::kValuesOfTheKeys;
  // Nothing lies behind the last row of the last page.
  const auto extent = [&](const att::Strides& stride, std::int64_t dim) {
    return (count - 1) * stride.batch + (heads - 1) * stride.head + (rows - 1) * stride.seq + dim;
  };
  std::vector<double> k_memory(
      size(one && v_at > 0 ? v_at + extent(cache.v_stride, v) : extent(cache.k_stride, qk)),
      kNothing);
  const auto stored = [&](const std::vector<double>& values, const HostScales& scales) {
    return stored_elements(values, scales, count, heads);
  };
  const std::vector<double> v_values = stored(problem.v, problem.v_scales);
  place(stored(problem.k, problem.k_scales), problem, qk, 0, cache.k_stride, k_memory);
  if (order == CacheOrder::kValuesOfTheKeys) {
    cache.v_stride = cache.k_stride;
  } else if (one) {
    place(v_values, problem, v, v_at, cache.v_stride, k_memory);
    cache.v_at = size(v_at * bytes);
  } else {
    std::vector<double> v_memory(size(extent(cache.v_stride, v)), kNothing);
    place(v_values, problem, v, 0, cache.v_stride, v_memory);
    cache.v = encode(dtype, v_memory);
  }
  cache.k = encode(dtype, k_memory);
  return cache;
}

void make_values_of_keys(const AttentionSpec& spec, HostProblem& problem) {
  const std::int64_t qk = spec.head_dim_qk, v = spec.head_dim_v;
  for (std::int64_t row = 0; row * qk < static_cast<std::int64_t>(problem.k.size()); ++row) {
    std::copy_n(problem.k.begin() + row * qk, v, problem.v.begin() + row * v);
  }
  problem.v_scales = problem.k_scales;
}

}  // namespace attune::paged
