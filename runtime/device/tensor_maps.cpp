#include "runtime/device/tensor_maps.hpp"

#include <algorithm>
#include <bit>

#include "generator/spec/shape.hpp"
#include "runtime/device/workspace.hpp"
#include "templates/page_table.h"

namespace attune {
namespace {

// A tensor of a launch as (dim, seq, heads, batch); of paged keys, (dim, row, heads, page).
struct View {
  const void* data;
  int dim, seq, heads, batch;
  att::Strides strides;
};

View view(const AttentionSpec& spec, const att::LaunchParams& p, TensorMapRecipe::Tensor tensor) {
  using Tensor = TensorMapRecipe::Tensor;
  const int slices = static_cast<int>(slice_count(spec, shape_of(p)));
  const auto queries = [&](const void* data, int dim, const att::Strides& strides) {
    return View{data, dim, p.q_len, p.heads, slices, strides};
  };
  const auto keys = [&](const void* data, int dim, const att::Strides& strides) {
    if (is_paged(spec)) {
      return View{data, dim, p.page_table.page_size, p.kv_heads, p.page_table.pages, strides};
    }
    return View{data, dim, p.kv_len, p.kv_heads, slices, strides};
  };
  const int qk = spec.head_dim_qk, v = spec.head_dim_v;
  switch (tensor) {
    case Tensor::kQuery:
      return queries(p.q, qk, p.q_stride);
    case Tensor::kKey:
      return keys(p.k, qk, p.k_stride);
    case Tensor::kValue:
      return keys(p.v, v, p.v_stride);
    case Tensor::kOutput:
      return queries(p.o, v, p.o_stride);
    case Tensor::kOutputGradient:
      return queries(p.d_o, v, p.d_o_stride);
    case Tensor::kQueryGradient:
      return queries(p.d_q, qk, p.d_q_stride);
    case Tensor::kKeyGradient:
      return keys(p.d_k, qk, p.d_k_stride);
    case Tensor::kValueGradient:
      break;
  }
  return keys(p.d_v, v, p.d_v_stride);
}

bool possible(const View& v, int element_bytes) {
  const auto fits = [&](long long stride, int size) {
    if (size == 1) return true;  // never stepped
    const long long bytes = stride * element_bytes;
    return bytes > 0 && bytes % 16 == 0 && bytes < (1ll << 40);
  };
  return std::bit_cast<std::uintptr_t>(v.data) % 16 == 0 && fits(v.strides.seq, v.seq) &&
         fits(v.strides.head, v.heads) && fits(v.strides.batch, v.batch);
}

int box_rows(const AttentionSpec& spec, const TensorMapRecipe& map, const att::LaunchParams& p) {
  using Tensor = TensorMapRecipe::Tensor;
  const bool is_in_pages =
      is_paged(spec) && (map.tensor == Tensor::kKey || map.tensor == Tensor::kValue);
  return is_in_pages ? att::page_box_rows(p.page_table.page_size, map.box_rows) : map.box_rows;
}

int data_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return tensor_map::kFloat16;
    case DType::kBf16:
      return tensor_map::kBfloat16;
    case DType::kF32:
      return tensor_map::kFloat32;
    case DType::kFp8E4m3:
      break;
  }
  return tensor_map::kUint8;
}

int swizzle_code(int bytes) {  // CUtensorMapSwizzle
  return bytes == 128 ? 3 : bytes == 64 ? 2 : bytes == 32 ? 1 : 0;
}

}  // namespace

bool tensor_maps_possible(const AttentionSpec& spec, std::span<const TensorMapRecipe> maps,
                          const att::LaunchParams& params) {
  return std::ranges::all_of(maps, [&](const TensorMapRecipe& map) {
    return box_rows(spec, map, params) >= std::min(map.box_rows, att::kLeastPageBoxRows) &&
           possible(view(spec, params, map.tensor), element_bytes(spec.dtype));
  });
}

Status encode_tensor_map(const CudaApi& api, const AttentionSpec& spec,
                         const TensorMapRecipe& recipe, const att::LaunchParams& params,
                         TensorMap* map) {
  const View v = view(spec, params, recipe.tensor);
  const auto bytes = static_cast<std::uint64_t>(element_bytes(spec.dtype));
  // A dim of size 1 is never stepped, and its caller may have left any stride there.
  const auto stride = [&](long long elements, int size) {
    return size == 1 ? 16 : static_cast<std::uint64_t>(elements) * bytes;
  };
  const std::uint64_t dims[4] = {
      static_cast<std::uint64_t>(v.dim), static_cast<std::uint64_t>(v.seq),
      static_cast<std::uint64_t>(v.heads), static_cast<std::uint64_t>(v.batch)};
  const std::uint64_t strides[3] = {stride(v.strides.seq, v.seq), stride(v.strides.head, v.heads),
                                    stride(v.strides.batch, v.batch)};
  const std::uint32_t box[4] = {static_cast<std::uint32_t>(recipe.box_columns),
                                static_cast<std::uint32_t>(box_rows(spec, recipe, params)), 1, 1};
  const std::uint32_t element_strides[4] = {1, 1, 1, 1};
  return cuda_status(
      api,
      api.tensor_map_encode_tiled(map, data_type(spec.dtype), 4, const_cast<void*>(v.data), dims,
                                  strides, box, element_strides, tensor_map::kInterleaveNone,
                                  swizzle_code(recipe.swizzle_bytes),
                                  tensor_map::kL2Promotion256Bytes, tensor_map::kOutOfBoundsZero),
      "cuTensorMapEncodeTiled");
}

}  // namespace attune
