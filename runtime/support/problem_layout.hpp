// Sizes and strides that follow from a spec and a shape.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "generator/spec/shape.hpp"
#include "templates/params.h"

namespace attune {

// Sizes of an auxiliary tensor, one a declared dim.
inline std::vector<std::int64_t> tensor_sizes(const expr::TensorDecl& tensor,
                                              const ProblemShape& shape) {
  std::vector<std::int64_t> sizes;
  for (const expr::DimSize& dim : tensor.dims) sizes.push_back(dim_size(dim, shape));
  return sizes;
}

// At most 2^56, which no memory has: bytes of as many fit int64.
inline std::int64_t element_count(const std::vector<std::int64_t>& sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 56;
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(count, size, &count) || count > kMost) return kMost;
  }
  return count;
}

inline int tensor_element_bytes(expr::TensorType type) {
  return type == expr::TensorType::kBool ? 1 : expr::is_half(type) ? 2 : 4;
}

// Strides, in elements, of a contiguous q, k, v or o in the spec's layout.
inline att::Strides contiguous_strides(Layout layout, std::int64_t seq, std::int64_t heads,
                                       std::int64_t dim) {
  if (layout != Layout::kBhsd) return {seq * heads * dim, heads * dim, dim};
  return {seq * heads * dim, dim, seq * dim};
}

// Of a spec whose V is the first columns of K: what a launch says of K is then said of V.
inline void take_v_from_k(const AttentionSpec& spec, att::LaunchParams* params) {
  if (!spec.v_in_k) return;
  params->v = params->k;
  params->v_stride = params->k_stride;
}

// What of a launch's params follows from spec and shape alone: lengths, contiguous strides of q, k,
// v, o and of their gradients, sizes of auxiliary tensors. The rest is null or zero.
inline att::LaunchParams params_of(const AttentionSpec& spec, const ProblemShape& shape) {
  att::LaunchParams p{};
  p.batch = static_cast<int>(shape.batch);
  p.heads = static_cast<int>(shape.heads);
  p.kv_heads = static_cast<int>(shape.kv_heads);
  p.q_len = static_cast<int>(shape.q_len);
  p.kv_len = static_cast<int>(shape.kv_len);
  const auto strides = [&](std::int64_t seq, std::int64_t heads, int dim) {
    return contiguous_strides(spec.layout, seq, heads, dim);
  };
  p.q_stride = p.d_q_stride = strides(shape.q_len, shape.heads, spec.head_dim_qk);
  p.k_stride = p.d_k_stride = strides(shape.kv_len, shape.kv_heads, spec.head_dim_qk);
  p.v_stride = p.d_v_stride = strides(shape.kv_len, shape.kv_heads, spec.head_dim_v);
  p.o_stride = p.d_o_stride = strides(shape.q_len, shape.heads, spec.head_dim_v);
  take_v_from_k(spec, &p);
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    const auto& dims = spec.environment.tensors[slot].dims;
    for (std::size_t i = 0; i < att::kMaxTensorDims; ++i) {
      p.tensors[slot].size[i] = i < dims.size() ? static_cast<int>(dim_size(dims[i], shape)) : 1;
    }
  }
  return p;
}

// The pages of a cache, as a launch names them.
struct PageSizes {
  std::int64_t per_sequence = 0, size = 0, count = 0;
};

// A table of pages at `entries`, with what kernels divide by their size with.
inline att::PageTable page_table_of(const std::int32_t* entries, const PageSizes& pages) {
  const auto size = static_cast<std::uint64_t>(pages.size);
  const int bits = static_cast<int>(std::bit_width(size - 1));
  // Of numbers below 2^31 this is exact: the error of the multiplier is less than 2^bits.
  const int shift = 31 + bits;
  return {.entries = entries,
          .pages_per_sequence = static_cast<int>(pages.per_sequence),
          .page_size = static_cast<int>(pages.size),
          .pages = static_cast<int>(pages.count),
          .multiplier = static_cast<unsigned>(((std::uint64_t{1} << shift) + size - 1) / size),
          .shift = shift};
}

// Contiguous strides of k and v in pages of `page_size`: [pages, page_size, kv_heads, dim].
inline void set_page_strides(const AttentionSpec& spec, const ProblemShape& shape,
                             std::int64_t page_size, att::LaunchParams* params) {
  params->k_stride = contiguous_strides(spec.layout, page_size, shape.kv_heads, spec.head_dim_qk);
  params->v_stride = contiguous_strides(spec.layout, page_size, shape.kv_heads, spec.head_dim_v);
  take_v_from_k(spec, params);
}

// `drop_below` of 256: elements whose random byte is below are dropped.
inline void set_dropout(unsigned drop_below, std::uint64_t seed, std::uint64_t offset,
                        att::LaunchParams* params) {
  params->dropout_drop_below = drop_below;
  params->dropout_keep_scale = 256.0f / static_cast<float>(256 - drop_below);
  params->dropout_seed = seed;
  params->dropout_offset = offset;
}

// Where seed and offset lie on the device, for a spec with its seed there.
inline void set_dropout_state(const void* state, att::LaunchParams* params) {
  params->dropout_seed = std::bit_cast<std::uintptr_t>(state);
}
inline const void* dropout_state(const att::LaunchParams& params) {
  return std::bit_cast<const void*>(static_cast<std::uintptr_t>(params.dropout_seed));
}

}  // namespace attune
