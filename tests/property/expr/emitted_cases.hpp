// Masks and scores, given and random, and one library of their emitted functions.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "generator/expr/ast.hpp"
#include "generator/expr/emit_functions.hpp"
#include "templates/params.h"

namespace attune::expr {

struct EmittedCaseFunctions {
  bool (*mask)(const att::ForwardParams*, int b, int h, int q, int k);
  float (*score)(const att::ForwardParams*, int b, int h, float s, int q, int k);
  decltype(score) score_of_sums;  // the same, of keys and queries that are sums
  int (*classify)(const att::ForwardParams*, int b, int h, int q0, int q1, int k0, int k1);
  void (*kv_bounds)(const att::ForwardParams*, int b, int h, int q0, int q1, int* bounds);
  void (*q_bounds)(const att::ForwardParams*, int b, int h, int k0, int k1, int* bounds);
  bool (*row_bounds)(const att::ForwardParams*, int b, int h, int q, int* bounds);
  // As columns.cuh lets a tile ask: tiles of 64 keys, and of 48, of which the last may be ragged.
  bool (*mask_of_64)(const att::ForwardParams*, int b, int h, int q, int first, int lane,
                     int column);
  bool (*mask_of_48)(const att::ForwardParams*, int b, int h, int q, int first, int lane,
                     int column);
  bool (*score_line)(const att::ForwardParams*, int b, int h, int q, int k, float* line);
};

struct EmittedCase {
  std::string text;
  HeadExpressions expressions;
  bool exact = false;  // no floats: bit for bit what the evaluator says
  EmittedCaseFunctions functions = {};
};

bool has_floats(const Expr& e);

std::vector<EmittedCase> emitted_cases(std::mt19937& random);
// The text of their library, with a function `block_range` that makes a tensor's pairs.
std::string source_of(const std::vector<EmittedCase>& cases, const Environment& environment);
// Those of the case that is the library's `number`-th.
void find_functions(void* library, std::size_t number, EmittedCase& c);

}  // namespace attune::expr
