// An interval program as straight-line C++.
#pragma once

#include <span>
#include <string>

#include "generator/expr/mask_programs.hpp"

namespace attune::expr {

// Declarations of what the results need, two blanks indented, appended to `lines`; and each
// result's text. Names in scope: c (Context), and the box as q_first, q_last, kv_first, kv_last.
// Rows of tensors of the slots in `ascending` ascend wherever the program is run.
std::vector<std::string> emit_program(const MaskProgram& program, const Environment& environment,
                                      std::string& lines, std::span<const int> ascending = {});

}  // namespace attune::expr
