#include "tests/verification/batches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/pages.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tests/verification/packed.hpp"

namespace attune::batches {
namespace {

constexpr int kHeads = 4, kKvHeads = 1;
constexpr int kTreeColumns = 64;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

int below(std::mt19937_64& random, int bound) {
  return std::uniform_int_distribution<int>(0, bound - 1)(random);
}

// Normal numbers, drawn once: batches take theirs from anywhere in it.
class Pool {
 public:
  explicit Pool(const AttentionSpec& spec) : values_(1 << 16) {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    for (double& value : values_) value = round_to(spec.dtype, normal(random));
  }
  std::vector<double> take(std::int64_t count, std::mt19937_64& random) const {
    std::vector<double> taken(size(count));
    std::size_t from = random() % values_.size();
    for (double& value : taken) {
      value = values_[from];
      from = from + 1 == values_.size() ? 0 : from + 1;
    }
    return taken;
  }

 private:
  std::vector<double> values_;
};

// [heads, rows, dim] each; of the tree [queries, kTreeColumns].
struct Sequence {
  int queries = 0, keys = 0;
  std::vector<double> q, k, v, sees;
};

Sequence draw(const AttentionSpec& spec, const Pool& pool, int queries, int keys,
              std::mt19937_64& random) {
  Sequence made{.queries = queries, .keys = keys, .q = {}, .k = {}, .v = {}, .sees = {}};
  made.q = pool.take(std::int64_t{kHeads} * queries * spec.head_dim_qk, random);
  made.k = pool.take(std::int64_t{kKvHeads} * keys * spec.head_dim_qk, random);
  made.v = pool.take(std::int64_t{kKvHeads} * keys * spec.head_dim_v, random);
  for (int i = 0; i < queries * kTreeColumns; ++i) made.sees.push_back(below(random, 2));
  return made;
}

// Rows [first, first + count) of [heads, rows, dim].
std::vector<double> rows_of(const std::vector<double>& all, int heads, int rows, int dim, int first,
                            int count) {
  std::vector<double> part;
  for (int h = 0; h < heads; ++h) {
    const auto from = all.begin() + (std::int64_t{h} * rows + first) * dim;
    part.insert(part.end(), from, from + std::int64_t{count} * dim);
  }
  return part;
}

// Queries [first, first + count), and the keys up to the last one's.
Sequence part_of(const AttentionSpec& spec, const Sequence& whole, int first, int count) {
  Sequence part{.queries = count,
                .keys = whole.keys - (whole.queries - first - count),
                .q = {},
                .k = {},
                .v = {},
                .sees = {}};
  const int qk = spec.head_dim_qk;
  part.q = rows_of(whole.q, kHeads, whole.queries, qk, first, count);
  part.k = rows_of(whole.k, kKvHeads, whole.keys, qk, 0, part.keys);
  part.v = rows_of(whole.v, kKvHeads, whole.keys, spec.head_dim_v, 0, part.keys);
  part.sees.resize(size(count * kTreeColumns));
  return part;
}

// Copies [heads, rows, dim] into [heads, of_all, dim], from row `first` on.
void put(const std::vector<double>& from, int heads, int rows, int dim, std::int64_t first,
         std::int64_t of_all, std::vector<double>& to) {
  for (int h = 0; h < heads; ++h) {
    std::copy_n(from.begin() + std::int64_t{h} * rows * dim, std::int64_t{rows} * dim,
                to.begin() + (h * of_all + first) * dim);
  }
}

void put_tensors(const AttentionSpec& spec, const std::vector<const Sequence*>& batch,
                 HostProblem& problem) {
  if (spec.environment.tensors.empty()) return;
  expr::TensorValues sees{.sizes = {problem.shape.q_len, kTreeColumns}, .values = {}};
  sees.values.resize(size(problem.shape.q_len * kTreeColumns), 1);
  for (std::size_t b = 0; b < batch.size(); ++b) {
    std::ranges::copy(
        batch[b]->sees,
        sees.values.begin() + problem.sequences.q_first(static_cast<int>(b)) * kTreeColumns);
  }
  problem.tensors = {std::move(sees)};
}

// Gaps between sequences, of queries, keys or pages, are whatever the pool holds.
HostProblem packed_batch(const AttentionSpec& spec, const Pool& pool,
                         const std::vector<const Sequence*>& batch, std::mt19937_64& random) {
  HostProblem problem;
  HostSequences& at = problem.sequences;
  const bool has_gaps = below(random, 2) == 0;
  const auto gap = [&] { return has_gaps ? below(random, 40) : 0; };
  at.cu_q = {0};
  if (!is_paged(spec)) at.cu_kv = {0};
  int longest = 1;
  for (const Sequence* one : batch) {
    at.cu_q.push_back(at.cu_q.back() + one->queries + gap());
    at.used_q.push_back(one->queries);
    if (!is_paged(spec)) at.cu_kv.push_back(at.cu_kv.back() + one->keys + gap());
    at.used_kv.push_back(one->keys);
    longest = std::max(longest, one->keys);
  }
  const std::int64_t q_len = std::max(1, at.cu_q.back() + gap());
  const std::int64_t kv_len = is_paged(spec) ? longest + (has_gaps ? below(random, 3000) : 0)
                                             : std::max(1, at.cu_kv.back() + gap());
  problem.shape = {.batch = static_cast<std::int64_t>(batch.size()),
                   .heads = kHeads,
                   .kv_heads = kKvHeads,
                   .q_len = q_len,
                   .kv_len = kv_len};
  const int qk = spec.head_dim_qk, dim_v = spec.head_dim_v;
  problem.q = pool.take(kHeads * q_len * qk, random);
  for (std::size_t b = 0; b < batch.size(); ++b) {
    put(batch[b]->q, kHeads, batch[b]->queries, qk, at.cu_q[b], q_len, problem.q);
  }
  if (is_paged(spec)) {
    constexpr std::int64_t kPageSizes[] = {1, 16, 24, 64};
    problem.pages = draw_pages(at.used_kv, kv_len, kPageSizes[below(random, 4)], random);
    const HostPages& pages = problem.pages;
    problem.k = pool.take(pages.count * kKvHeads * pages.size * qk, random);
    problem.v = pool.take(pages.count * kKvHeads * pages.size * dim_v, random);
    for (std::size_t b = 0; b < batch.size(); ++b) {
      for (int key = 0; key < batch[b]->keys; ++key) {
        for (int h = 0; h < kKvHeads; ++h) {
          const std::int64_t row =
              (pages.page_of(static_cast<int>(b), key) * kKvHeads + h) * pages.size +
              key % pages.size;
          const std::int64_t from = std::int64_t{h} * batch[b]->keys + key;
          std::copy_n(batch[b]->k.begin() + from * qk, qk, problem.k.begin() + row * qk);
          std::copy_n(batch[b]->v.begin() + from * dim_v, dim_v, problem.v.begin() + row * dim_v);
        }
      }
    }
  } else {
    problem.k = pool.take(kKvHeads * kv_len * qk, random);
    problem.v = pool.take(kKvHeads * kv_len * dim_v, random);
    for (std::size_t b = 0; b < batch.size(); ++b) {
      put(batch[b]->k, kKvHeads, batch[b]->keys, qk, at.cu_kv[b], kv_len, problem.k);
      put(batch[b]->v, kKvHeads, batch[b]->keys, dim_v, at.cu_kv[b], kv_len, problem.v);
    }
  }
  put_tensors(spec, batch, problem);
  return problem;
}

// Memory of a launch.
class Memory {
 public:
  explicit Memory(Device& device) : device_(device) {}
  ~Memory() {
    for (void* const one : all_) device_.free(one);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* add(std::size_t bytes) {
    auto memory = device_.allocate(std::max<std::size_t>(bytes, 16));
    if (!memory.ok()) return nullptr;
    all_.push_back(*memory);
    return *memory;
  }
  void* upload(const std::vector<std::byte>& bytes) {
    void* const to = add(bytes.size());
    if (to != nullptr) (void)device_.copy_to_device(to, bytes.data(), bytes.size());
    return to;
  }

 private:
  Device& device_;
  std::vector<void*> all_;
};

// All of one length, as [batch, heads, rows, dim]; the rows of sequence `wanted`.
Result<HostOutput> run_dense(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                             const std::vector<const Sequence*>& batch, std::size_t wanted) {
  const Sequence& one = *batch[wanted];
  const ProblemShape shape{.batch = static_cast<std::int64_t>(batch.size()),
                           .heads = kHeads,
                           .kv_heads = kKvHeads,
                           .q_len = one.queries,
                           .kv_len = one.keys};
  att::LaunchParams params = params_of(spec, shape);
  const auto place = [&](std::vector<double> Sequence::* of, int heads, int rows, int dim) {
    std::vector<double> all;
    for (const Sequence* each : batch)
      all.insert(all.end(), (each->*of).begin(), (each->*of).end());
    return std::pair(encode(spec.dtype, all), contiguous_strides(Layout::kBhsd, rows, heads, dim));
  };
  const auto [q, q_stride] = place(&Sequence::q, kHeads, one.queries, spec.head_dim_qk);
  const auto [k, k_stride] = place(&Sequence::k, kKvHeads, one.keys, spec.head_dim_qk);
  const auto [v, v_stride] = place(&Sequence::v, kKvHeads, one.keys, spec.head_dim_v);
  const std::int64_t rows = std::int64_t{kHeads} * one.queries;
  const std::size_t o_bytes = size(rows * spec.head_dim_v * element_bytes(spec.dtype));
  const std::size_t lse_bytes = size(rows) * sizeof(float);
  Memory memory(device);
  params.q = memory.upload(q);
  params.k = memory.upload(k);
  params.v = memory.upload(v);
  auto* const o = static_cast<std::byte*>(memory.add(o_bytes * batch.size()));
  auto* const lse = static_cast<std::byte*>(memory.add(lse_bytes * batch.size()));
  params.o = o;
  params.lse = reinterpret_cast<float*>(lse);
  params.q_stride = q_stride;
  params.k_stride = k_stride;
  params.v_stride = v_stride;
  params.o_stride = contiguous_strides(Layout::kBhsd, one.queries, kHeads, spec.head_dim_v);
  ATT_CHECK(kernel.launch(params, memory.add(kernel.workspace_bytes(shape)), nullptr));
  ATT_CHECK(device.synchronize());
  std::vector<std::byte> o_host(o_bytes);
  std::vector<float> lse_host(size(rows));
  ATT_CHECK(device.copy_to_host(o_host.data(), o + wanted * o_bytes, o_bytes));
  ATT_CHECK(device.copy_to_host(lse_host.data(), lse + wanted * lse_bytes, lse_bytes));
  HostOutput output;
  output.o = decode(spec.dtype, o_host);
  output.lse.assign(lse_host.begin(), lse_host.end());
  return output;
}

Result<HostOutput> run_batch(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                             const Pool& pool, const std::vector<const Sequence*>& batch,
                             std::size_t wanted, std::mt19937_64& random) {
  if (!is_packed(spec)) return run_dense(device, kernel, spec, batch, wanted);
  const HostProblem problem = packed_batch(spec, pool, batch, random);
  std::vector<Row> rows;
  for (int h = 0; h < kHeads; ++h) {
    for (int q = 0; q < batch[wanted]->queries; ++q) {
      rows.push_back({.b = static_cast<int>(wanted), .h = h, .q_idx = q});
    }
  }
  return packed::run_packed(device, kernel, spec, problem, rows);
}

// Pages of some sizes, which the tensor unit cannot walk.
bool is_refused(const Error& error) { return error.id == kStridesUnsupported; }

bool same_bits(const double* a, const double* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(double)) == 0;
}

// Rows [heads, part.queries] of `part` against rows [heads, queries] of `whole`, from `first` on.
std::string difference(const AttentionSpec& spec, const HostOutput& whole, int queries,
                       const HostOutput& part, int count, int first) {
  const std::size_t dim = size(spec.head_dim_v);
  for (int h = 0; h < kHeads; ++h) {
    for (int q = 0; q < count; ++q) {
      const std::size_t in_whole = size(h * queries + first + q), in_part = size(h * count + q);
      if (!same_bits(&whole.o[in_whole * dim], &part.o[in_part * dim], dim)) {
        return fmt::format("O of head {}, query {}", h, first + q);
      }
      if (!same_bits(&whole.lse[in_whole], &part.lse[in_part], 1)) {
        return fmt::format("LSE of head {}, query {}", h, first + q);
      }
    }
  }
  return "";
}

}  // namespace

AttentionSpec spec_of(const char* dtype, const char* layout, const char* lines) {
  const auto spec =
      parse_spec(fmt::format("attune: 1\nname: t\ndtype: {}\nlayout: {}\nbatch_invariant: true\n{}",
                             dtype, layout, lines),
                 "test.yaml");
  return spec.ok() ? *spec : AttentionSpec{};
}

std::string differs_in_batches(Device& device, const LoadedKernel& kernel,
                               const AttentionSpec& spec, int count, std::uint64_t seed,
                               const LoadedKernel* alone_by) {
  constexpr int kLengths[][2] = {{1, 4200}, {3, 2100}, {20, 2500}, {1, 300}, {2, 1}};
  const Pool pool(spec);
  std::mt19937_64 random(seed);
  std::vector<Sequence> known;
  std::vector<HostOutput> alone;
  for (const auto& [queries, keys] : kLengths) {
    known.push_back(draw(spec, pool, queries, keys, random));
    auto output = run_batch(device, alone_by != nullptr ? *alone_by : kernel, spec, pool,
                            {&known.back()}, 0, random);
    if (!output.ok()) return render(output.error());
    alone.push_back(*std::move(output));
  }
  int compared = 0;
  for (int run = 0; run < count; ++run) {
    const std::size_t which = random() % known.size();
    const int kind = below(random, 6);  // a few of some length, long ones, very many
    int others = kind == 5 ? 60 + below(random, 30) : below(random, 6);
    if (!is_packed(spec)) others = std::min(others, 10000 / known[which].keys);
    const int longest = kind == 5 ? 30 : kind == 4 ? 4500 : kind == 3 ? 1200 : 300;
    std::vector<Sequence> drawn;
    for (int i = 0; i < others; ++i) {
      const int queries = below(random, 3) == 0 ? below(random, 30) : 1;
      drawn.push_back(is_packed(spec)
                          ? draw(spec, pool, queries, below(random, longest), random)
                          : draw(spec, pool, known[which].queries, known[which].keys, random));
    }
    std::vector<const Sequence*> batch;
    for (const Sequence& one : drawn) batch.push_back(&one);
    const std::size_t place = random() % (batch.size() + 1);
    batch.insert(batch.begin() + static_cast<std::ptrdiff_t>(place), &known[which]);
    const auto output = run_batch(device, kernel, spec, pool, batch, place, random);
    if (!output.ok() && is_refused(output.error())) continue;
    if (!output.ok()) return render(output.error());
    ++compared;
    const int queries = known[which].queries;
    const std::string found = difference(spec, alone[which], queries, *output, queries, 0);
    if (!found.empty()) {
      return fmt::format("batch {} of {} sequences, {} x {} at place {}: {}", run, batch.size(),
                         queries, known[which].keys, place, found);
    }
  }
  if (compared < count / 4) return fmt::format("{} of {} batches were launched", compared, count);
  return "";
}

std::string differs_in_parts(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                             std::uint64_t seed, const LoadedKernel* parts_by) {
  const Pool pool(spec);
  std::mt19937_64 random(seed);
  constexpr int kQueries = 150, kKeys = 4150;  // over ends of a piece and of an item of 128
  const Sequence whole = draw(spec, pool, kQueries, kKeys, random);
  auto expected = run_batch(device, kernel, spec, pool, {&whole}, 0, random);
  for (int i = 0; i < 20 && !expected.ok() && is_refused(expected.error()); ++i)
    expected = run_batch(device, kernel, spec, pool, {&whole}, 0, random);
  if (!expected.ok()) return render(expected.error());
  const auto check = [&](int first, int count) -> std::string {
    const Sequence part = part_of(spec, whole, first, count);
    const auto output =
        run_batch(device, parts_by != nullptr ? *parts_by : kernel, spec, pool, {&part}, 0, random);
    if (!output.ok()) return render(output.error());
    const std::string found = difference(spec, *expected, kQueries, *output, count, first);
    return found.empty() ? found : fmt::format("queries {} + {}: {}", first, count, found);
  };
  for (int i = 0; i < kQueries; i += 11) {
    if (std::string found = check(i, 1); !found.empty()) return found;
  }
  for (const int count : {2, 5, 16, 33, 64, 130}) {
    for (const int first : {0, 3, kQueries - count}) {
      if (first + count > kQueries) continue;
      if (std::string found = check(first, count); !found.empty()) return found;
    }
  }
  return "";
}

}  // namespace attune::batches
