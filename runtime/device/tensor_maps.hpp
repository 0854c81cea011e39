// TMA descriptors: where they can be used, and how they are encoded.
#pragma once

#include <span>

#include "generator/plan/plan.hpp"
#include "runtime/device/cuda_api.hpp"
#include "templates/params.h"

namespace attune {

// As CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// False when, of the tensor that `map` describes, a stride is negative, zero where it steps, not a
// multiple of 16 bytes or 2^40 bytes and more, or the base is not 16-byte aligned, or the page size
// is no multiple of 16: the tensor unit cannot walk such a tensor.
bool tensor_map_possible(const AttentionSpec& spec, const TensorMapRecipe& map,
                         const att::LaunchParams& params);
// Whether all are that a kernel needs.
bool tensor_maps_possible(const AttentionSpec& spec, std::span<const TensorMapRecipe> maps,
                          const att::LaunchParams& params);
// Whether the optional ones are, and pages do not cut their boxes: else Launch::otherwise runs.
bool has_optional_maps(const AttentionSpec& spec, std::span<const TensorMapRecipe> maps,
                       const att::LaunchParams& params);

// Encodes one descriptor; takes about as long as one driver call and does not touch the device.
Status encode_tensor_map(const CudaApi& api, const AttentionSpec& spec,
                         const TensorMapRecipe& recipe, const att::LaunchParams& params,
                         TensorMap* map);

}  // namespace attune
