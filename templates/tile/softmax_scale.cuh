// What products are multiplied with to be scores.
#pragma once

#include "templates/params.h"

namespace att {

ATT_FN float softmax_scale(const ForwardParams& p) {
  return spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
}

}  // namespace att
