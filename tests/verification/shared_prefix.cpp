#include "tests/verification/shared_prefix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/reference/pages.hpp"

namespace attune::shared_prefix {
namespace {

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

constexpr std::int64_t kPageSizes[] = {1, 3, 16, 64, 256};

// Numbers of a normal distribution that are drawn once: problems have millions.
const std::vector<double>& numbers() {
  static const std::vector<double> drawn = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    std::vector<double> values(1 << 17);
    for (double& value : values) value = normal(random);
    return values;
  }();
  return drawn;
}

// `count` rows, each of them numbers that follow one another from anywhere.
std::vector<double> rows_of(std::int64_t count, std::int64_t dim, DType dtype,
                            std::mt19937_64& random) {
  const std::vector<double>& from = numbers();
  std::vector<double> values;
  values.reserve(size(count * dim));
  for (std::int64_t row = 0; row < count; ++row) {
    const std::size_t first = random() % (from.size() - size(dim));
    for (std::size_t i = first; i < first + size(dim); ++i) {
      values.push_back(round_to(dtype, from[i]));
    }
  }
  return values;
}

// A problem of these sequences, none of which shares a page yet, without K and V.
HostProblem plain_problem(const AttentionSpec& spec, const ProblemShape& shape,
                          const std::vector<std::int32_t>& queries,
                          const std::vector<std::int32_t>& keys, std::int64_t page_size,
                          std::mt19937_64& random) {
  AttentionSpec brief = spec;  // K and V of one sequence only, which are drawn for nothing
  brief.shared_prefix = static_cast<int>(shape.kv_len);
  HostProblem problem = random_problem(brief, shape, random());
  problem.sequences = {};
  problem.sequences.cu_q = {0};
  for (const std::int32_t count : queries) {
    problem.sequences.cu_q.push_back(problem.sequences.cu_q.back() + count);
  }
  problem.sequences.used_kv = keys;
  problem.pages = draw_pages(keys, shape.kv_len, page_size, random);
  return problem;
}

void fill_pages(const AttentionSpec& spec, HostProblem& problem, std::mt19937_64& random) {
  const std::int64_t rows = problem.pages.count * problem.pages.size * problem.shape.kv_heads;
  problem.k = rows_of(rows, spec.head_dim_qk, spec.dtype, random);
  problem.v = rows_of(rows, spec.head_dim_v, spec.dtype, random);
  spoil_unused(spec, problem);
}

// What b and b - 1 begin with, as far as both fill their pages and `most` keys go.
void copy_pages(HostProblem& problem, std::int64_t b, std::int64_t most) {
  HostPages& pages = problem.pages;
  const std::vector<std::int32_t>& keys = problem.sequences.used_kv;
  const std::int64_t common =
      std::min<std::int64_t>({keys[size(b)], keys[size(b - 1)], most}) / pages.size;
  std::copy_n(pages.table.begin() + (b - 1) * pages.per_sequence, common,
              pages.table.begin() + b * pages.per_sequence);
}

}  // namespace

std::string yaml_of(const char* dtype, const char* lines) {
  return fmt::format("name: t\ndtype: {}\nlayout: paged\nshared_prefixes: true\n{}", dtype, lines);
}

HostProblem shared_problem(const AttentionSpec& spec, const ProblemShape& shape,
                           const std::vector<std::int32_t>& queries,
                           const std::vector<std::int32_t>& keys, std::int64_t page_size,
                           std::int64_t common, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  HostProblem problem = plain_problem(spec, shape, queries, keys, page_size, random);
  for (std::int64_t b = 1; b < shape.batch; ++b) copy_pages(problem, b, common);
  fill_pages(spec, problem, random);
  return problem;
}

HostProblem random_shared(const AttentionSpec& spec, std::mt19937_64& random) {
  const auto below = [&](std::int32_t bound) {
    return std::uniform_int_distribution<std::int32_t>(0, bound - 1)(random);
  };
  constexpr int kHeads[][2] = {{1, 1}, {2, 2}, {4, 2}, {6, 2}, {4, 1}, {8, 1}, {5, 1}};
  const auto& [heads, kv_heads] = kHeads[below(7)];
  const std::int32_t batch = 2 + below(below(4) == 0 ? 40 : 14);
  const std::int32_t longest = below(4) == 0 ? 3001 : 1201;
  const std::int32_t most_queries = below(2) == 0 ? 1 : 4;
  std::vector<std::int32_t> queries, keys, used;
  for (std::int32_t b = 0; b < batch; ++b) {
    const bool is_short = below(8) == 0;
    keys.push_back(is_short ? below(600) : 500 + below(longest - 500));
    queries.push_back(below(12) == 0 ? below(40) : below(20) == 0 ? 0 : 1 + below(most_queries));
    used.push_back(below(queries.back() + 1));
  }
  const std::int32_t all = std::accumulate(queries.begin(), queries.end(), 0);
  const ProblemShape shape{.batch = batch,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .q_len = std::max(1, all + below(2) * below(30)),
                           .kv_len = longest};
  HostProblem problem = plain_problem(spec, shape, queries, keys, kPageSizes[below(5)], random);
  if (below(4) == 0) problem.sequences.used_q = used;
  std::int32_t most = below(longest);  // of a run, which now and then grows or shrinks
  for (std::int32_t b = 1; b < batch; ++b) {
    const std::int32_t event = below(8);
    if (event == 0) continue;  // a run begins
    if (event == 1) most = below(longest);
    copy_pages(problem, b, most);
  }
  fill_pages(spec, problem, random);
  return problem;
}

HostProblem garbage_shared(const AttentionSpec& spec, int run, std::mt19937_64& random) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                         kMost = std::numeric_limits<std::int32_t>::max();
  const ProblemShape shape{.batch = 9, .heads = 4, .kv_heads = 2, .q_len = 30, .kv_len = 1500};
  const std::vector<std::int32_t> queries = {1, 1, 2, 1, 3, 1, 0, 4, 1};
  const std::vector<std::int32_t> keys = {1500, 1499, 1400, 1300, 1500, 900, 1500, 1200, 1500};
  HostProblem problem =
      shared_problem(spec, shape, queries, keys, kPageSizes[run % 5], 1100, random());
  const auto anything = [&](std::int32_t bound) {
    return run % 2 == 0 ? std::uniform_int_distribution(kLeast, kMost)(random)
                        : std::uniform_int_distribution(-bound, 2 * bound)(random);
  };
  const auto pages = static_cast<std::int32_t>(problem.pages.count);
  // The same nonsense in all tables, so that it is shared.
  const std::int64_t each = problem.pages.per_sequence;
  for (std::int64_t page = 0; page < each; ++page) {
    if (random() % 3 != 0) continue;
    const std::int32_t value = run % 4 == 3 ? -1 : anything(pages);
    for (std::int64_t b = 0; b < shape.batch; ++b)
      problem.pages.table[size(b * each + page)] = value;
  }
  const auto spoil = [&](std::vector<std::int32_t>& values) {
    for (std::int32_t& value : values) value = anything(1500);
  };
  if (run % 3 == 1) spoil(problem.sequences.used_kv);
  if (run % 3 == 2) spoil(problem.sequences.cu_q);
  return problem;
}

}  // namespace attune::shared_prefix
