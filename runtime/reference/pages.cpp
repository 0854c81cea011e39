#include "runtime/reference/pages.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace attune {
namespace {

constexpr std::int64_t kIdlePages = 3;

void spoil(std::vector<double>& values, std::int64_t heads, std::int64_t size, std::int64_t dim,
           const std::vector<bool>& is_used) {
  for (std::size_t row = 0; row < is_used.size(); ++row) {
    if (is_used[row]) continue;
    const auto page = static_cast<std::int64_t>(row) / size;
    const auto in_page = static_cast<std::int64_t>(row) % size;
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto first = static_cast<std::size_t>(((page * heads + head) * size + in_page) * dim);
      std::fill_n(&values[first], dim, std::numeric_limits<double>::quiet_NaN());
    }
  }
}

}  // namespace

HostPages draw_pages(std::span<const std::int32_t> lengths, std::int64_t room, std::int64_t size,
                     std::mt19937_64& random, std::int64_t common) {
  const auto pages_of = [&](std::int64_t keys) { return (keys + size - 1) / size; };
  // Of sequence b, how many of the first one's it has.
  const auto shared = [&](std::size_t b) -> std::int64_t {
    return b == 0 ? 0 : std::min<std::int64_t>({lengths[0], lengths[b], common}) / size;
  };
  HostPages pages{.table = {}, .per_sequence = pages_of(room), .size = size, .count = kIdlePages};
  for (std::size_t b = 0; b < lengths.size(); ++b) pages.count += pages_of(lengths[b]) - shared(b);
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages.count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  auto next = order.begin();
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t own = pages_of(lengths[b]) - shared(b);
    pages.table.insert(pages.table.end(), order.begin(), order.begin() + shared(b));
    pages.table.insert(pages.table.end(), next, next + own);
    pages.table.resize((b + 1) * static_cast<std::size_t>(pages.per_sequence), -1);
    next += own;
  }
  return pages;
}

void spoil_unused(const AttentionSpec& spec, HostProblem& problem) {
  const HostPages& pages = problem.pages;
  std::vector<bool> is_used(static_cast<std::size_t>(pages.count * pages.size), false);
  for (int b = 0; b < problem.shape.batch; ++b) {
    for (std::int64_t key = 0; key < problem.sequences.kv_len(b); ++key) {
      is_used[static_cast<std::size_t>(pages.page_of(b, key) * pages.size + key % pages.size)] =
          true;
    }
  }
  spoil(problem.k, problem.shape.kv_heads, pages.size, spec.head_dim_qk, is_used);
  if (!spec.v_in_k) spoil(problem.v, problem.shape.kv_heads, pages.size, spec.head_dim_v, is_used);
}

}  // namespace attune
