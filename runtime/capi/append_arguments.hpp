// att_append_options and att_append_args, checked, as kernels take them.
#pragma once

#include <array>

#include "generator/emit/append.hpp"
#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"
#include "templates/append/params.h"

namespace attune {

// What the options say; the target is the device's to fill in.
struct AppendChoice {
  AppendKernel kernel;
  std::array<unsigned long long, att::kMaxRotaryPairs> turns{};  // as att::AppendParams has them
};
// kBadInput: numbers that mean nothing; else as check() of the kernel.
Result<AppendChoice> append_choice(const att_append_options& options);

// kBadInput: null, misaligned, too large, strides that cannot be. `params->tokens` is 0 where there
// is nothing to do. Allocates only when it fails.
Status fill_append_params(const AppendChoice& choice, const att_append_args& args,
                          att::AppendParams* params);

}  // namespace attune
