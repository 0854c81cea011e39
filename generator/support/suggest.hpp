// "did you mean ...": the nearest of a list of names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace attune {

// The candidate that PyTorch or NumPy call `name`, else the one with the smallest edit distance to
// it (insert, delete, replace, swap of neighbours); of equals one that begins with `name`, then the
// first; empty when none is near enough to be what was meant.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

// "did you mean `mask`?", or "" when no candidate is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

// "`a`, `b` or `c`"
std::string join_names(std::span<const std::string_view> names);

}  // namespace attune
