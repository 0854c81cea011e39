#include "tests/verification/packed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "generator/spec/shape.hpp"
#include "runtime/reference/cache_scales.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune::packed {
namespace {

constexpr std::size_t kGuardBytes = 1024;
constexpr std::uint8_t kGuard = 0xC5, kUnwritten = 0xA7;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

Error failed(std::string message) { return Error{.id = "test", .message = std::move(message)}; }

// Device memory between two guards: an output, or an input that must stay as it is.
class Guarded {
 public:
  Guarded(Device& device, std::size_t bytes, std::vector<std::byte> input = {})
      : device_(device), bytes_(bytes), input_(std::move(input)) {
    auto memory = device.allocate(bytes + 2 * kGuardBytes);
    if (!memory.ok()) return;
    base_ = static_cast<std::byte*>(*memory);
    (void)device.fill(base_, kGuard, bytes + 2 * kGuardBytes);
    (void)device.fill(data(), kUnwritten, bytes);
    if (!input_.empty()) (void)device.copy_to_device(data(), input_.data(), bytes);
  }
  ~Guarded() {
    if (base_ != nullptr) device_.free(base_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return base_ + kGuardBytes; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(bytes_ + 2 * kGuardBytes);
    (void)device_.copy_to_host(bytes.data(), base_, bytes.size());
    return bytes;
  }
  bool intact() const {
    const std::vector<std::byte> bytes = read();
    const auto is_guard = [](std::byte b) { return b == std::byte{kGuard}; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuardBytes, is_guard) &&
           std::all_of(bytes.end() - kGuardBytes, bytes.end(), is_guard) &&
           (input_.empty() || std::memcmp(input_.data(), &bytes[kGuardBytes], bytes_) == 0);
  }

 private:
  Device& device_;
  std::size_t bytes_;
  const std::vector<std::byte> input_;  // empty of an output
  std::byte* base_ = nullptr;
};

// A problem on the device.
class Launched {
 public:
  Launched(Device& device, const AttentionSpec& spec, const HostProblem& problem,
           const Cache* cache = nullptr)
      : device_(device), spec_(spec), problem_(problem), params_(params_of(spec, problem.shape)) {
    const ProblemShape& s = problem.shape;
    const HostPages& pages = problem.pages;
    const std::int64_t slices = pages.empty() ? 1 : pages.count;
    const std::int64_t keys = pages.empty() ? s.kv_len : pages.size;
    params_.q = upload(tokens_first(spec.dtype, problem.q, 1, s.heads, s.q_len, spec.head_dim_qk));
    if (!pages.empty()) {
      set_page_strides(spec, s, pages.size, &params_);
      params_.page_table =
          page_table_of(upload(pages.table), {pages.per_sequence, pages.size, pages.count});
    }
    if (cache == nullptr) {
      const auto cached = [&](const std::vector<double>& values, const HostScales& scales,
                              std::int64_t dim) {
        return upload(tokens_first(kv_dtype(spec),
                                   stored_elements(values, scales, slices, s.kv_heads), slices,
                                   s.kv_heads, keys, dim));
      };
      params_.k = cached(problem.k, problem.k_scales, spec.head_dim_qk);
      if (!spec.v_in_k) params_.v = cached(problem.v, problem.v_scales, spec.head_dim_v);
    } else {
      const std::byte* const k = upload(cache->k);
      params_.k = k + cache->k_at;
      params_.v = (cache->v.empty() ? k : upload(cache->v)) + cache->v_at;
      params_.k_stride = cache->k_stride;
      params_.v_stride = cache->v_stride;
    }
    take_v_from_k(spec, &params_);
    params_.k_scales = upload(problem.k_scales);
    params_.v_scales = upload(problem.v_scales);
    o_ = &add(size(s.q_len * s.heads * spec.head_dim_v) * size(element_bytes(spec.dtype)));
    lse_ = &add(size(s.q_len * s.heads) * sizeof(float));
    params_.o = o_->data();
    params_.lse = reinterpret_cast<float*>(lse_->data());
    params_.softmax_scale = static_cast<float>(
        spec.softmax_scale.at_launch ? problem.softmax_scale : spec.softmax_scale.value);
    set_dropout(dropout_drop_below(spec.dropout.at_launch ? problem.dropout : spec.dropout.value),
                problem.dropout_seed, problem.dropout_offset, &params_);
    if (spec.seed_on_device) {
      const std::uint64_t state[] = {problem.dropout_seed, problem.dropout_offset};
      set_dropout_state(upload(std::as_bytes(std::span(state))), &params_);
    }
    for (std::size_t i = 0; i < problem.scalars.size(); ++i) {
      if (spec.environment.scalars[i].type == expr::Type::kFloat32)
        params_.scalars[i].as_float = static_cast<float>(problem.scalars[i]);
      else
        params_.scalars[i].as_int = static_cast<std::int32_t>(problem.scalars[i]);
    }
    for (std::size_t i = 0; i < problem.tensors.size(); ++i) add_tensor(i);
    const HostSequences& sequences = problem.sequences;
    params_.sequences.cu_q = upload(sequences.cu_q);
    if (!sequences.cu_kv.empty()) params_.sequences.cu_kv = upload(sequences.cu_kv);
    if (!sequences.used_q.empty()) params_.sequences.used_q = upload(sequences.used_q);
    if (!sequences.used_kv.empty()) params_.sequences.used_kv = upload(sequences.used_kv);
  }

  Status launch(const LoadedKernel& kernel) {
    const std::size_t bytes = kernel.workspace_bytes(problem_.shape);
    ATT_CHECK(kernel.launch(params_, add(bytes).data(), nullptr));
    ATT_CHECK(device_.synchronize());
    for (const auto& buffer : buffers_) {
      if (!buffer->intact()) return failed("an input, or bytes beside a buffer, were overwritten");
    }
    return ok_status();
  }

  // After launch(): every row of the problem's, and nothing else, was written.
  Result<HostOutput> rows(const std::vector<Row>& wanted) const {
    const ProblemShape& s = problem_.shape;
    const HostSequences& sequences = problem_.sequences;
    std::vector<bool> is_query(size(s.q_len), false);
    for (int b = 0; b < s.batch; ++b) {
      const auto first = is_query.begin() + sequences.q_first(b);
      std::fill(first, first + sequences.q_len(b), true);
    }
    const std::size_t row_bytes = size(spec_.head_dim_v * element_bytes(spec_.dtype));
    const std::vector<std::byte> o = o_->read(), lse = lse_->read();
    const auto untouched = [](const std::byte* at, std::size_t count) {
      return std::all_of(at, at + count, [](std::byte b) { return b == std::byte{kUnwritten}; });
    };
    const auto o_at = [&](std::int64_t token, std::int64_t head) {
      return o.data() + kGuardBytes + size(token * s.heads + head) * row_bytes;
    };
    const auto lse_at = [&](std::int64_t token, std::int64_t head) {
      return lse.data() + kGuardBytes + size(head * s.q_len + token) * sizeof(float);
    };
    for (std::int64_t token = 0; token < s.q_len; ++token) {
      for (std::int64_t head = 0; head < s.heads; ++head) {
        const bool o_kept = untouched(o_at(token, head), row_bytes);
        const bool lse_kept = untouched(lse_at(token, head), sizeof(float));
        if (o_kept == !is_query[size(token)] && lse_kept == !is_query[size(token)]) continue;
        return failed(
            fmt::format("token {} of head {} is {} query, and its o was {}written, its "
                        "lse {}written",
                        token, head, is_query[size(token)] ? "a" : "no", o_kept ? "not " : "",
                        lse_kept ? "not " : ""));
      }
    }
    HostOutput output;
    for (const Row& row : wanted) {
      const std::int64_t token = sequences.q_first(row.b) + row.q_idx;
      const auto values =
          decode(spec_.dtype, std::span<const std::byte>(o_at(token, row.h), row_bytes));
      output.o.insert(output.o.end(), values.begin(), values.end());
      float one = 0;
      std::memcpy(&one, lse_at(token, row.h), sizeof one);
      output.lse.push_back(one);
    }
    return output;
  }

 private:
  Guarded& add(std::size_t bytes) {
    return *buffers_.emplace_back(std::make_unique<Guarded>(device_, bytes));
  }
  const std::byte* upload(std::span<const std::byte> bytes) {
    std::vector<std::byte> input(bytes.begin(), bytes.end());
    return buffers_
        .emplace_back(std::make_unique<Guarded>(device_, bytes.size(), std::move(input)))
        ->data();
  }
  const int* upload(const std::vector<std::int32_t>& values) {
    return reinterpret_cast<const int*>(upload(std::as_bytes(std::span(values))));
  }
  att::CacheScales upload(const HostScales& scales) {
    if (scales.values.empty()) return {};
    return {reinterpret_cast<const float*>(upload(scale_bytes(scales))), scales.slice_stride,
            scales.head_stride};
  }
  // Slices of [heads, tokens, dim] as [tokens, heads, dim].
  static std::vector<std::byte> tokens_first(DType dtype, const std::vector<double>& values,
                                             std::int64_t slices, std::int64_t heads,
                                             std::int64_t tokens, std::int64_t dim) {
    std::vector<double> turned(values.size());
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      const std::int64_t first = slice * heads * tokens;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          std::copy_n(&values[size((first + h * tokens + t) * dim)], dim,
                      &turned[size((first + t * heads + h) * dim)]);
        }
      }
    }
    return encode(dtype, turned);
  }
  void add_tensor(std::size_t slot) {
    std::vector<std::byte> bytes;
    if (const expr::TensorType type = spec_.environment.tensors[slot].type; expr::is_half(type)) {
      const DType dtype = type == expr::TensorType::kFloat16 ? DType::kF16 : DType::kBf16;
      params_.tensors[slot].data = upload(encode(dtype, problem_.tensors[slot].values));
      return;
    }
    for (const double value : problem_.tensors[slot].values) {
      const auto as_int = static_cast<std::int32_t>(value);
      const auto as_float = static_cast<float>(value);
      const expr::TensorType type = spec_.environment.tensors[slot].type;
      if (type == expr::TensorType::kBool) {
        bytes.push_back(std::byte{value != 0});
        continue;
      }
      const bool is_int = type == expr::TensorType::kInt32;
      const auto* from = is_int ? reinterpret_cast<const std::byte*>(&as_int)
                                : reinterpret_cast<const std::byte*>(&as_float);
      bytes.insert(bytes.end(), from, from + 4);
    }
    params_.tensors[slot].data = upload(bytes);
  }

  Device& device_;
  const AttentionSpec& spec_;
  const HostProblem& problem_;
  att::LaunchParams params_;
  std::vector<std::unique_ptr<Guarded>> buffers_;
  const Guarded* o_ = nullptr;
  const Guarded* lse_ = nullptr;
};

std::vector<std::int32_t> offsets(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> cu = {0};
  for (const std::int32_t length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

void spoil(std::vector<double>& values, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
           const std::vector<bool>& is_used) {
  for (std::int64_t row = 0; row < heads * tokens; ++row) {
    if (is_used[size(row % tokens)]) continue;
    std::fill_n(&values[size(row * dim)], dim, std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

HostProblem packed_problem(const AttentionSpec& spec, const ProblemShape& shape,
                           HostSequences sequences, std::uint64_t seed) {
  HostProblem problem = random_problem(spec, shape, seed);
  problem.sequences = std::move(sequences);
  return problem;
}

HostProblem random_packed(const AttentionSpec& spec, std::mt19937_64& random, int most,
                          int longest_of_all) {
  const auto below = [&](std::int32_t bound) {
    return std::uniform_int_distribution<std::int32_t>(0, bound - 1)(random);
  };
  const std::int32_t batch = 1 + below(most);
  constexpr int kHeads[][2] = {{1, 1}, {2, 2}, {4, 2}, {6, 2}, {4, 1}};
  const auto& [heads, kv_heads] = kHeads[below(5)];
  const std::int32_t kind = below(3);  // as many keys, more of them, or few queries
  const std::int32_t longest = below(2) == 0 ? longest_of_all : 60;
  std::vector<std::int32_t> q_lengths, kv_lengths;
  HostSequences sequences;
  const bool shortens = below(2) == 0;
  for (std::int32_t i = 0; i < batch; ++i) {
    const std::int32_t length = below(4) == 0 ? 0 : below(longest);
    q_lengths.push_back(kind == 2 ? std::min(length, below(4)) : length);
    kv_lengths.push_back(kind == 1 ? length + below(200) : length);
    if (!shortens) continue;
    sequences.used_q.push_back(below(q_lengths.back() + 1));
    sequences.used_kv.push_back(below(kv_lengths.back() + 1));
  }
  sequences.cu_q = offsets(q_lengths);
  sequences.cu_kv = offsets(kv_lengths);
  const std::int32_t behind = below(2) * below(100);
  const ProblemShape shape{.batch = batch,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .q_len = std::max(1, sequences.cu_q.back() + behind),
                           .kv_len = std::max(1, sequences.cu_kv.back() + behind)};
  HostProblem problem = packed_problem(spec, shape, std::move(sequences), random());
  for (expr::TensorValues& tensor : problem.tensors) {
    for (double& value : tensor.values) {
      // A length of a sequence's, not of all tokens'.
      if (value > longest) value = below(longest);
    }
  }
  return problem;
}

void spoil_foreign(const AttentionSpec& spec, HostProblem& problem, int foreign) {
  const ProblemShape& s = problem.shape;
  const HostSequences& sequences = problem.sequences;
  std::vector<bool> queries(size(s.q_len), false), keys(size(s.kv_len), false);
  for (int b = 0; b < s.batch; ++b) {
    if (b == foreign) continue;
    std::fill_n(queries.begin() + sequences.q_first(b), sequences.q_len(b), true);
    std::fill_n(keys.begin() + sequences.kv_first(b), sequences.kv_len(b), true);
  }
  spoil(problem.q, s.heads, s.q_len, spec.head_dim_qk, queries);
  spoil(problem.k, s.kv_heads, s.kv_len, spec.head_dim_qk, keys);
  if (!spec.v_in_k) spoil(problem.v, s.kv_heads, s.kv_len, spec.head_dim_v, keys);
}

Result<HostOutput> run_packed(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                              const HostProblem& problem, const std::vector<Row>& rows,
                              const Cache* cache) {
  Launched launched(device, spec, problem, cache);
  ATT_CHECK(launched.launch(kernel));
  return launched.rows(rows);
}

Status run_garbage(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                   const HostProblem& problem) {
  return Launched(device, spec, problem).launch(kernel);
}

}  // namespace attune::packed
