#include "runtime/capi/cache_scales.hpp"

#include <fmt/format.h>

#include <tuple>

#include "runtime/capi/operand.hpp"
#include "runtime/capi/sizes.hpp"

namespace attune {

Status fill_scales(const char* name, bool scaled, const ScaledHeads& of, const float* values,
                   std::int64_t slice_stride, std::int64_t head_stride, att::CacheScales* scales) {
  *scales = {};
  if (!scaled) {
    if (values == nullptr && slice_stride == 0 && head_stride == 0) return ok_status();
    return bad_argument(
        fmt::format("`{}` or a stride of it is given, and K and V have the dtype of "
                    "the queries",
                    name),
        "scales go with a cache of fp8");
  }
  if (values == nullptr) {
    if (slice_stride == 0 && head_stride == 0) return ok_status();
    return bad_argument(fmt::format("`{}` is null, and it has strides", name),
                        "null stands for 1 everywhere");
  }
  ATT_CHECK(check_pointer(name, values, alignof(float)));
  for (const auto& [what, count, stride] :
       {std::tuple{"page", of.slices, slice_stride}, {"head", of.heads, head_stride}}) {
    if (stride >= 0 && stride <= kMaxTensorBytes / (count < 1 ? 1 : count)) continue;
    return bad_argument(fmt::format("the {} stride of `{}` is {} elements", what, name, stride),
                        "0, the same for all, or more");
  }
  *scales = {values, slice_stride, head_stride};
  return ok_status();
}

}  // namespace attune
