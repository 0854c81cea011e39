// Random typed trees, made from a tape of random numbers so that RapidCheck can shrink them.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <vector>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// The names that random expressions use. Scalars: w int32, x float32, on bool, all at launch.
const Environment& random_environment();

// Uniform numbers, whatever the size of the case; they shrink to zero, which makes leaves.
using Tape = std::vector<std::uint32_t>;
rc::Gen<Tape> any_tape();

class RandomExpression {
 public:
  struct Options {
    bool floats = true;
    bool loads = true;
    bool score = false;
    // Floats only by +, -, * and functions with bounded slopes: no jumps, no poles, no waves.
    bool smooth = false;
    bool waves = true;  // sin and cos, of which a difference sees nothing where they are narrow
  };
  RandomExpression(const Tape& tape, Options options) : tape_(tape), options_(options) {}

  // Trees as they come, nothing folded; indices marked as clamped. An exhausted tape gives leaves.
  Expr boolean(int depth);
  Expr integer(int depth);
  Expr real(int depth);
  // a * q_idx + b * kv_idx + c compared with d * q_idx + e * kv_idx + f, small coefficients.
  Expr affine_order(bool with_key);

 private:
  std::uint32_t draw(std::uint32_t below);
  Expr load(int slot, int depth);
  Expr affine_sum();

  const Tape& tape_;
  Options options_;
  std::size_t at_ = 0;
};

// The same tree through the factories of build.hpp, which fold and simplify.
Expr rebuilt(const Expr& e);

}  // namespace attune::expr
