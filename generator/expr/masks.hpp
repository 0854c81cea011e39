// The named masks of masks.att, parsed once.
#pragma once

#include <span>

#include "generator/expr/syntax.hpp"

namespace attune::expr {

// In file order. Thread-safe; lives for the whole program.
std::span<const Definition> mask_definitions();

}  // namespace attune::expr
