// Masks under which a query sees keys that have its own number in a tensor, as documents have one.
// Where each number's positions are neighbours, a run, a row's keys are the range of its run, which
// is told without a look-up for each of them; and dead tiles need not be walked.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// A mask that is `rest and t[row..., of_query] == t[row..., kv_idx]`, of an int32 tensor t.
struct RunForm {
  Expr query_number;  // the first look-up, whose slot is t's
  Expr key_number;    // the second one
  Expr rest;          // null: the equality alone

  int slot() const { return query_number->slot; }
  // What the equality compares with kv_idx: an int32 of the query.
  const Expr& of_query() const { return query_number->args.back(); }
};

// Of a mask whose outermost `and`s have such an operand; the first of several.
std::optional<RunForm> run_form(const Expr& mask);

// Tensors of int32, as large as t: of each position, where its run begins and the position behind
// it. The first run of a row begins at kRunsBegin and the last one ends at kRunsEnd, so that
// indices that are clamped into the row are in it. Where a row has a number whose positions are not
// one run, all of its positions have kNoRuns and kRunsEnd; else both ascend.
struct RunTensors {
  int begin, end;  // slots
};
inline constexpr std::int32_t kRunsBegin = -(1 << 30);
inline constexpr std::int32_t kRunsEnd = 1 << 30;
inline constexpr std::int32_t kNoRuns = kRunsBegin - 1;

// Whose runs are asked for: the query's for bounds of keys, the key's for bounds of queries.
enum class RunsOf : std::uint8_t { kQuery, kKey, kBoth };

struct MaskByRuns {
  Expr is_told;  // the same for a whole item: where it is true,
  Expr by_runs;  // the mask is this
};
MaskByRuns mask_by_runs(const RunForm& form, const RunTensors& tensors, RunsOf whose);

}  // namespace attune::expr
