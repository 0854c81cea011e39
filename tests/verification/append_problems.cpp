// Problems of writing into a cache: drawn, far and hostile ones.
#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/verification/append_checks.hpp"

namespace attune::append_test {
namespace {

std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> offsets = {0};
  for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

int draw(std::mt19937_64& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

}  // namespace

att_append_options options_of(int dtype, int rope, int head_dim_qk, int rotary_dim) {
  att_append_options options = {};
  options.struct_size = sizeof options;
  options.dtype = options.cache_dtype = dtype;
  options.head_dim_qk = options.head_dim_v = head_dim_qk;
  options.rope = rope;
  options.rotary_dim = rotary_dim;
  return options;
}

std::vector<att_append_options> various_options() {
  std::vector<att_append_options> all = {options_of(ATT_BF16, ATT_ROPE_HALF),
                                         options_of(ATT_FP16, ATT_ROPE_INTERLEAVED, 64, 32),
                                         options_of(ATT_FP32, ATT_ROPE_HALF, 80, 24),
                                         options_of(ATT_BF16, ATT_ROPE_INTERLEAVED, 96, 18),
                                         options_of(ATT_FP16, ATT_ROPE_HALF, 64, 2),
                                         options_of(ATT_FP32, ATT_ROPE_INTERLEAVED, 8),
                                         options_of(ATT_BF16, ATT_ROPE_HALF, 256),
                                         options_of(ATT_BF16, ATT_ROPE_NONE, 192)};
  all[1].rope_base = 500000;
  all[2].rope_factor = 8;
  all[3].rope_base = 1e6;
  all[3].rope_factor = 0.37;
  all[6].head_dim_v = 64;
  all[7].head_dim_v = 128;
  // Into caches of fp8.
  all.push_back(options_of(ATT_BF16, ATT_ROPE_HALF));
  all.push_back(options_of(ATT_FP16, ATT_ROPE_INTERLEAVED, 80, 24));
  all.push_back(options_of(ATT_FP32, ATT_ROPE_NONE, 64));
  for (std::size_t i = all.size() - 3; i < all.size(); ++i) all[i].cache_dtype = ATT_FP8_E4M3;
  return all;
}

std::vector<Problem> hostile_problems(const att_append_options& options, std::mt19937_64& random) {
  constexpr std::int32_t kLeast = INT32_MIN, kMost = INT32_MAX;
  std::vector<Problem> all;
  const auto add = [&](int layout) -> Problem& {
    Problem problem = paged_problem(options, {3, 2, 5, 1}, {20, 2, 9, 30}, 4, random);
    problem.layout = layout;
    if (layout != ATT_PAGED) {
      problem.page_size = problem.pages = problem.pages_per_sequence = 0;
      problem.table.clear();
    }
    if (layout == ATT_THD) problem.cu_kv = {0, 20, 22, 31, 61}, problem.shape.kv_len = 61;
    return all.emplace_back(std::move(problem));
  };
  for (const std::int32_t page : {-1, -2, kLeast, kMost}) {
    std::ranges::fill(add(ATT_PAGED).table, page);
  }
  Problem& one_behind = add(ATT_PAGED);
  std::ranges::fill(one_behind.table, static_cast<std::int32_t>(one_behind.pages));
  for (const int layout : {ATT_PAGED, ATT_THD, ATT_BHSD}) {
    add(layout).used_kv = {kLeast, -1, 0, kMost};  // fewer keys than new tokens, more than room
    add(layout).used_q = {kLeast, -1, 4, kMost};
    add(layout).cu_q = {9, 5, 0, kLeast, kMost};
    add(layout).cu_q = {kMost, kMost, kMost, kMost, kMost};
    add(layout).cu_q = {-7, -3, 4, 200, 300};
  }
  add(ATT_THD).cu_kv = {9, 5, 0, kLeast, kMost};
  add(ATT_THD).cu_kv = {-5, 10, 12, 59, kMost};
  for (Problem& problem : all) problem.table_positions = options.rope == ATT_ROPE_NONE ? 0 : 3;
  return all;
}

Problem paged_problem(const att_append_options& options, const std::vector<std::int32_t>& tokens,
                      const std::vector<std::int32_t>& keys, std::int64_t page_size,
                      std::mt19937_64& random) {
  Problem problem{.options = options, .page_size = page_size};
  problem.cu_q = offsets_of(tokens);
  problem.used_kv = keys;
  const std::int32_t longest = std::max(1, *std::ranges::max_element(keys));
  problem.shape = {static_cast<std::int64_t>(tokens.size()), 4, 2,
                   std::max<std::int64_t>(1, problem.cu_q.back()), longest};
  problem.pages_per_sequence = (longest + page_size - 1) / page_size + 1;
  std::int64_t used = 0;
  for (const std::int32_t count : keys) used += (count + page_size - 1) / page_size;
  problem.pages = used + 3;
  std::vector<std::int32_t> shuffled(static_cast<std::size_t>(problem.pages));
  std::iota(shuffled.begin(), shuffled.end(), 0);
  std::ranges::shuffle(shuffled, random);
  problem.table.assign(static_cast<std::size_t>(problem.shape.batch * problem.pages_per_sequence),
                       -1);
  std::size_t next = 0;
  for (std::size_t b = 0; b < keys.size(); ++b) {
    const auto count = static_cast<std::size_t>((keys[b] + page_size - 1) / page_size);
    for (std::size_t i = 0; i < count; ++i) {
      problem.table[b * static_cast<std::size_t>(problem.pages_per_sequence) + i] =
          shuffled[next++];
    }
  }
  return problem;
}

Problem far_problem(const att_append_options& options, std::mt19937_64& random) {
  Problem problem = paged_problem(options, {2, 3}, {16, 3}, 16, random);
  const std::int32_t page = problem.table[0];
  problem.pages_per_sequence = 1 << 16;
  problem.shape.kv_len = 1 << 20;
  problem.used_kv = {1 << 20, 1000003};
  problem.table.assign(2 << 16, -1);
  problem.table[(1 << 16) - 1] = page;
  return problem;
}

Problem random_problem(const att_append_options& options, int layout, std::mt19937_64& random) {
  const bool decode = draw(random, 0, 2) == 0;
  std::vector<std::int32_t> tokens, keys;
  for (int b = draw(random, 1, 6); b > 0; --b) {
    tokens.push_back(decode ? 1 : draw(random, 0, 3) == 0 ? 0 : draw(random, 1, 12));
    keys.push_back(draw(random, 0, 3) == 0 ? tokens.back() : tokens.back() + draw(random, 0, 70));
  }
  constexpr std::int64_t kPageSizes[] = {1, 3, 16, 64};
  Problem problem = paged_problem(options, tokens, keys, kPageSizes[draw(random, 0, 3)], random);
  problem.layout = layout;
  problem.order = kOrders[draw(random, 0, 2)];
  problem.shape.q_len += draw(random, 0, 1) * 7;  // room behind the last token
  problem.fused = draw(random, 0, 1) == 1;
  problem.in_place = draw(random, 0, 1) == 1;
  problem.without_q = draw(random, 0, 5) == 0;
  problem.without_v = draw(random, 0, 5) == 0;
  if (draw(random, 0, 2) == 0) {
    for (const std::int32_t count : tokens) problem.used_q.push_back(draw(random, 0, count + 1));
  }
  if (options.rope != ATT_ROPE_NONE && draw(random, 0, 2) == 0) {
    problem.table_positions = draw(random, 1, 80);
  }
  if (draw(random, 0, 3) == 0) {
    for (std::int64_t i = 0; i < problem.shape.q_len; ++i) {
      problem.positions.push_back(draw(random, -5, 200));
    }
  }
  if (layout == ATT_PAGED) return problem;
  problem.page_size = problem.pages = problem.pages_per_sequence = 0;
  problem.table.clear();
  if (layout == ATT_THD) {
    problem.cu_kv = offsets_of(keys);
    for (std::int32_t& offset : problem.cu_kv) offset += 2;  // rows that are no sequence's
    problem.shape.kv_len = problem.cu_kv.back() + 5;
    if (draw(random, 0, 1) == 0) problem.used_kv.clear();
  }
  return problem;
}

}  // namespace attune::append_test
