// The text of a kernel's wgmma products.
#pragma once

#include <string>
#include <string_view>

#include "generator/spec/spec.hpp"

namespace attune {

// Of a 16-bit dtype: "bf16" or "f16".
std::string_view wgmma_element(DType dtype);

// What a product goes through of a head dim, in steps of 16.
constexpr int whole_steps(int head_dim) { return (head_dim + 15) / 16 * 16; }

// D[64, columns] = or += A B, `steps` times 16 deep, as a function of a kernel's head.
struct WgmmaChain {
  std::string_view name;     // of the function
  std::string_view element;  // "bf16" or "f16"
  int columns;
  int steps;
  bool accumulates;
  bool a_in_registers;  // or in shared memory
  bool transposes_b;
  bool transposes_a = false;  // in shared memory
  // Without accumulating: D's registers are the caller's all the same, of one call after the other.
  // Else the compiler takes others for each, undefined ones, which ptxas keeps all around a loop.
  bool keeps_registers = false;
};

// The function `name(d, a, b)`: D's registers; A's, four a step, or its descriptor's low word (see
// templates/ptx/wgmma.cuh); B's. From step to step these grow by the template parameters kBStep and
// kAStep, and every four steps by kBFour and kAFour instead of four times that.
//
// All steps are one asm statement. One a step would say the same, but to the compiler's optimizer a
// statement is an instruction that reads and writes all of D, and these made up a quarter of its
// time.
std::string wgmma_function(const WgmmaChain& chain);

// D[64, columns] += A B of one step of bf16, as a function `name(d, a, b)`, whose operands are not
// swizzled: A's eight rows stand for all, B's follow one another, 16 bytes a row, and the second
// half of the step reads the same as the first. D may be of products of another type.
// `a_in_registers`: A's one word of a thread, in place of its descriptor.
std::string wgmma_split_function(std::string_view name, int columns, bool a_in_registers = false);

}  // namespace attune
