#include "runtime/device/tensor_maps.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "generator/spec/shape.hpp"
#include "runtime/device/workspace.hpp"
#include "templates/page_table.h"

namespace attune {
namespace {

struct Axis {
  int size;
  long long stride;  // elements
};
// A tensor of a launch as (dim, seq, heads, batch); of paged keys, (dim, row, heads, page); with
// residues, (dim, seq, residue, heads, batch).
struct View {
  const void* data;
  int dim;
  std::array<Axis, 4> axes;  // but dim's, whose stride is 1
  std::size_t axis_count;
  std::span<const Axis> steps() const { return std::span(axes).first(axis_count); }
};

View view(const AttentionSpec& spec, const att::LaunchParams& p, TensorMapRecipe::Tensor tensor) {
  using Tensor = TensorMapRecipe::Tensor;
  const int slices = static_cast<int>(slice_count(spec, shape_of(p))) / spec.residues;
  const auto rows = [&](const void* data, int dim, int seq, int heads, int batch,
                        const att::Strides& stride) {
    const Axis row = {seq, stride.seq}, head = {heads, stride.head}, slice = {batch, stride.batch};
    if (spec.residues == 1) return View{data, dim, {row, head, slice}, 3};
    const Axis residue = {spec.residues, stride.seq / spec.residues};
    return View{data, dim, {row, residue, head, slice}, 4};
  };
  const auto queries = [&](const void* data, int dim, const att::Strides& strides) {
    return rows(data, dim, p.q_len, p.heads, slices, strides);
  };
  const auto keys = [&](const void* data, int dim, const att::Strides& strides) {
    if (is_paged(spec))
      return rows(data, dim, p.page_table.page_size, p.kv_heads, p.page_table.pages, strides);
    return rows(data, dim, p.kv_len, p.kv_heads, slices, strides);
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
  const auto fits = [&](const Axis& axis) {
    if (axis.size == 1) return true;  // never stepped
    const long long bytes = axis.stride * element_bytes;
    return bytes > 0 && bytes % 16 == 0 && bytes < (1ll << 40);
  };
  return std::bit_cast<std::uintptr_t>(v.data) % 16 == 0 && std::ranges::all_of(v.steps(), fits);
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

bool tensor_map_possible(const AttentionSpec& spec, const TensorMapRecipe& map,
                         const att::LaunchParams& params) {
  return box_rows(spec, map, params) >= std::min(map.box_rows, att::kLeastPageBoxRows) &&
         possible(view(spec, params, map.tensor), element_bytes(spec.dtype));
}

bool has_optional_maps(const AttentionSpec& spec, std::span<const TensorMapRecipe> maps,
                       const att::LaunchParams& params) {
  return std::ranges::all_of(maps, [&](const TensorMapRecipe& map) {
    return !map.is_optional ||
           (box_rows(spec, map, params) == map.box_rows && tensor_map_possible(spec, map, params));
  });
}

bool tensor_maps_possible(const AttentionSpec& spec, std::span<const TensorMapRecipe> maps,
                          const att::LaunchParams& params) {
  return std::ranges::all_of(maps, [&](const TensorMapRecipe& map) {
    return map.is_optional || tensor_map_possible(spec, map, params);
  });
}

Status encode_tensor_map(const CudaApi& api, const AttentionSpec& spec,
                         const TensorMapRecipe& recipe, const att::LaunchParams& params,
                         TensorMap* map) {
  const View v = view(spec, params, recipe.tensor);
  const auto bytes = static_cast<std::uint64_t>(element_bytes(spec.dtype));
  std::uint64_t dims[5] = {static_cast<std::uint64_t>(v.dim)}, strides[4] = {};
  for (std::size_t i = 0; i < v.axis_count; ++i) {
    const auto [size, stride] = v.axes[i];
    dims[1 + i] = static_cast<std::uint64_t>(size);
    // A dim of size 1 is never stepped, and its caller may have left any stride there.
    strides[i] = size == 1 ? 16 : static_cast<std::uint64_t>(stride) * bytes;
  }
  const std::uint32_t box[5] = {static_cast<std::uint32_t>(recipe.box_columns),
                                static_cast<std::uint32_t>(box_rows(spec, recipe, params)), 1, 1,
                                1};
  const std::uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  return cuda_status(api,
                     api.tensor_map_encode_tiled(
                         map, data_type(spec.dtype), static_cast<std::uint32_t>(1 + v.axis_count),
                         const_cast<void*>(v.data), dims, strides, box, element_strides,
                         tensor_map::kInterleaveNone, swizzle_code(recipe.swizzle_bytes),
                         tensor_map::kL2Promotion256Bytes, tensor_map::kOutOfBoundsZero),
                     "cuTensorMapEncodeTiled");
}

}  // namespace attune
