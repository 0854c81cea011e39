// Scales of a cache of few bits, as the arguments of a launch bring them.
#pragma once

#include <cstdint>

#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"
#include "templates/params.h"

namespace attune {

// Slices of the cache along its batch stride, and heads of each.
struct ScaledHeads {
  std::int64_t slices, heads;
};

// Checks one of them and notes it; `scaled`: the cache has scales, else none may be given.
Status fill_scales(const char* name, bool scaled, const ScaledHeads& of, const float* values,
                   std::int64_t slice_stride, std::int64_t head_stride, att::CacheScales* scales);

// Those of att_forward_args and att_append_args.
template <typename Args, typename Params>
Status fill_cache_scales(bool scaled, const ScaledHeads& of, const Args& args, Params* params) {
  ATT_CHECK(fill_scales("k_scales", scaled, of, args.k_scales, args.k_scale_page_stride,
                        args.k_scale_head_stride, &params->k_scales));
  return fill_scales("v_scales", scaled, of, args.v_scales, args.v_scale_page_stride,
                     args.v_scale_head_stride, &params->v_scales);
}

}  // namespace attune
