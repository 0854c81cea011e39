#include "generator/expr/emit_functions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "generator/expr/build.hpp"
#include "generator/expr/emit_mask.hpp"
#include "generator/expr/emit_program.hpp"
#include "generator/expr/emit_value.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/score_core.hpp"
#include "generator/expr/score_line.hpp"

namespace attune::expr {
namespace {

Products products_of(const HeadExpressions& e) {
  return e.rounds_products ? Products::kRounded : Products::kContracted;
}

std::string value_functions(const HeadExpressions& e, const Environment& environment) {
  const Products products = products_of(e);
  std::string text = mask_functions(e.mask, environment, products);
  text +=
      "\n"
      "// Natural-unit score of one element from its scaled product s. Query and Key are int or "
      "what\n"
      "// stands for one (templates/tile/columns.cuh).\n"
      "template <typename Query, typename Key>\n"
      "ATT_FN float score([[maybe_unused]] const Context& c, [[maybe_unused]] float s,\n"
      "                   [[maybe_unused]] Query q_idx, [[maybe_unused]] Key kv_idx) {\n";
  text += e.score ? emit_value(e.score, environment, products) : "  return s;\n";
  text +=
      "}\n"
      "\n"
      "// The logit that joins the softmax' denominator.\n"
      "ATT_FN float sink([[maybe_unused]] const Context& c) {\n";
  text += e.sink ? emit_value(e.sink, environment, products) : "  return 0.0f;\n";
  return text + "}\n";
}

// What a family may use instead of score() whose constants meet others.
std::string score_core_function(const Expr& score, float scale, const Environment& environment,
                                Products products) {
  const ScoreCore made =
      score ? score_core(score, scale) : ScoreCore{make_variable(Variable::kScore), 1, 0};
  return fmt::format(
      "\n"
      "// The score is kScoreMultiplier * score_core() + kScoreOffset, the multiplier > 0. s is "
      "the "
      "product\n"
      "// without the softmax scale where that is constant.\n"
      "constexpr float kScoreMultiplier = {};\n"
      "constexpr float kScoreOffset = {};\n"
      "template <typename Query, typename Key>\n"
      "ATT_FN float score_core([[maybe_unused]] const Context& c, float s,\n"
      "                        [[maybe_unused]] Query q_idx, [[maybe_unused]] Key kv_idx) {{\n"
      "{}"
      "}}\n",
      float_literal(made.multiplier), float_literal(made.offset),
      emit_value(made.core, environment, products));
}

// What score_core() is, where it is known to be a logistic function.
std::string logistic_constants(const Expr& score, float scale) {
  const auto logistic = score ? score_logistic(score, scale) : std::nullopt;
  const ScoreLogistic made = logistic.value_or(ScoreLogistic{0, 0});
  return fmt::format(
      "// Whether score_core() of s is 1 / (1 + exp2(step * s + shift)).\n"
      "constexpr bool kScoreIsLogistic = {};\n"
      "constexpr float kLogisticStep = {};\n"
      "constexpr float kLogisticShift = {};\n",
      logistic.has_value(), float_literal(made.step), float_literal(made.shift));
}

// What a family may use instead of score() where that only adds a line.
std::string score_line_function(const Expr& score, const Environment& environment) {
  const auto line = score ? score_line(score) : std::nullopt;
  std::string text = fmt::format(
      "\n"
      "// Whether the score depends on kv_idx itself; and whether it is s plus a line in kv_idx, "
      "so "
      "that\n"
      "// score(c, s, q, k + i) is s + base + step * i of score_line(c, q, k).\n"
      "constexpr bool kScoreVariesByKey = {};\n"
      "constexpr bool kScoreIsLine = {};\n"
      "ATT_FN ScoreLine score_line([[maybe_unused]] const Context& c, [[maybe_unused]] int q_idx,\n"
      "                            [[maybe_unused]] int kv_idx) {{\n",
      score && depends_on(score, Variable::kKvIdx), line.has_value());
  if (!line) return text + "  return {0.0f, 0.0f};\n}\n";
  ValueEmitter emitter(environment, text);
  emitter.count(line->bias);
  emitter.count(line->step);
  const std::string base = emitter.value(line->bias), step = emitter.value(line->step);
  return text + fmt::format("  return {{{}, {}}};\n}}\n", unbracketed(base), unbracketed(step));
}

// The class by the program of a mask, or of what it is by runs.
std::string class_of(const Expr& mask, const HeadExpressions& e, const Environment& environment) {
  std::string text;
  const auto results = emit_program(*classify_program(mask), environment, text, e.run_slots);
  text += fmt::format("  const bool every = {};\n", results[0]);
  text += fmt::format("  const bool any = {};\n", results[1]);
  return text +
         "  return !any ? TileClass::kSkip : every ? TileClass::kFull : TileClass::kPartial;\n";
}

std::string classify_function(const HeadExpressions& e, const Environment& environment) {
  std::string text =
      "\n"
      "// Class of the box [q0, q1) x [k0, k1), neither side empty.\n"
      "ATT_FN TileClass classify_tile([[maybe_unused]] const Context& c, [[maybe_unused]] int q0,\n"
      "                               [[maybe_unused]] int q1, [[maybe_unused]] int k0,\n"
      "                               [[maybe_unused]] int k1) {\n";
  if (!e.mask) return text + "  return TileClass::kFull;\n}\n";
  text +=
      "  [[maybe_unused]] const int q_first = q0, q_last = q1 - 1, kv_first = k0, kv_last = k1 - "
      "1;\n";
  if (e.by_runs) {
    text +=
        fmt::format("  if (runs_are_told(c)) {{\n{}  }}\n", class_of(e.by_runs, e, environment));
  }
  return text + class_of(e.mask, e, environment) + "}\n";
}

// kv_bounds, or q_bounds: the same with the roles of queries and keys exchanged.
std::string bounds_function(const HeadExpressions& e, const Environment& environment,
                            bool of_keys) {
  std::string text = fmt::format(
      "\n"
      "// {} outside [begin, end) are dead for every {} of [{}). Within [0, {}].\n"
      "ATT_FN {} {}([[maybe_unused]] const Context& c, [[maybe_unused]] int {},\n"
      "             [[maybe_unused]] int {}) {{\n",
      of_keys ? "Keys" : "Queries", of_keys ? "query" : "key", of_keys ? "q0, q1" : "k0, k1",
      of_keys ? "kv_len" : "q_len", of_keys ? "KvBounds" : "QBounds",
      of_keys ? "kv_bounds" : "q_bounds", of_keys ? "q0" : "k0", of_keys ? "q1" : "k1");
  if (!e.mask)
    return text + fmt::format("  return {{0, c.{}}};\n}}\n", of_keys ? "kv_len" : "q_len");
  text += of_keys ? "  [[maybe_unused]] const int q_first = q0, q_last = q1 - 1;\n"
                  : "  [[maybe_unused]] const int kv_first = k0, kv_last = k1 - 1;\n";
  // Where runs are not told, those of all positions have no ends, and bounds by runs are wider.
  const Expr& mask = e.by_runs ? e.by_runs : e.mask;
  const auto program = of_keys ? kv_bounds_program(mask) : q_bounds_program(mask);
  const auto results = emit_program(*program, environment, text, e.run_slots);
  return text + fmt::format("  return {{{}, {}}};\n}}\n", results[0], results[1]);
}

// A mask by runs, which is simpler for items whose runs are told.
std::string run_functions(const HeadExpressions& e, const Environment& environment) {
  const Products products = products_of(e);
  std::string text = fmt::format(
      "\n"
      "// Where runs_are_told(), which is the same for all of an item, mask() is mask_by_runs().\n"
      "constexpr bool kHasRuns = {};\n"
      "ATT_FN bool runs_are_told([[maybe_unused]] const Context& c) {{\n",
      e.by_runs != nullptr);
  text += e.by_runs ? emit_value(e.runs_are_told, environment, products) : "  return false;\n";
  text +=
      "}\n"
      "ATT_FN bool mask_by_runs([[maybe_unused]] const Context& c, [[maybe_unused]] int q_idx,\n"
      "                         [[maybe_unused]] int kv_idx) {\n";
  text += e.by_runs ? emit_value(e.by_runs, environment, products) : "  return false;\n";
  return text + "}\n";
}

// What one row of a partial tile needs when its live keys are one interval.
std::string row_bounds_function(const HeadExpressions& e, const Environment& environment) {
  auto program = e.mask ? row_bounds_program(e.mask) : nullptr;
  const bool is_range = program != nullptr;
  if (!program && e.by_runs) program = row_bounds_program(e.by_runs);
  std::string text = fmt::format(
      "\n"
      "// Whether every row's live keys are one range, and which of its ends can differ from the "
      "ends\n"
      "// of the keys. With kRowIsRange, mask(c, q, k) is begin <= k && k < end of row_bounds(c, "
      "q);\n"
      "// with kRowMayBeRange it is so where runs_are_told().\n"
      "constexpr bool kRowIsRange = {};\n"
      "constexpr bool kRowMayBeRange = {};\n"
      "constexpr bool kRowHasBegin = {};\n"
      "constexpr bool kRowHasEnd = {};\n"
      "ATT_FN KvBounds row_bounds([[maybe_unused]] const Context& c, [[maybe_unused]] int q_idx) "
      "{{\n",
      is_range, program && !is_range,
      program && !program->program.is_constant(program->results[0], 0),
      program && program->program[program->results[1]].op != StepOp::kUniform);
  if (!program) return text + "  return {0, c.kv_len};\n}\n";
  const auto results = emit_program(*program, environment, text, e.run_slots);
  return text + fmt::format("  return {{{}, {}}};\n}}\n", results[0], results[1]);
}

bool has_any(const Expr& e, std::initializer_list<Op> ops) {
  return e && (std::ranges::find(ops, e->op) != ops.end() ||
               std::ranges::any_of(e->args, [&](const Expr& arg) { return has_any(arg, ops); }));
}

}  // namespace

std::string support_includes(const HeadExpressions& e, const Environment& environment) {
  const auto uses = [&](std::initializer_list<Op> ops) {
    return has_any(e.mask, ops) || has_any(e.score, ops) || has_any(e.sink, ops);
  };
  std::string text;
  if (uses({Op::kSoftplus, Op::kSin, Op::kCos, Op::kErf, Op::kPower}))
    text += "#include \"templates/tile/functions.cuh\"\n";
  if (uses({Op::kShiftLeft, Op::kShiftRight, Op::kBitAnd, Op::kBitOr, Op::kBitXor}))
    text += "#include \"templates/tile/bits.cuh\"\n";
  if (std::ranges::any_of(environment.tensors,
                          [](const TensorDecl& tensor) { return is_half(tensor.type); }))
    text += "#include \"templates/tile/half_tensors.cuh\"\n";
  if (e.rounds_products) text += "#include \"templates/ptx/rounded.cuh\"\n";
  return text;
}

std::string emit_functions(const HeadExpressions& e, const Environment& environment) {
  return value_functions(e, environment) +
         score_core_function(e.score, e.softmax_scale, environment, products_of(e)) +
         logistic_constants(e.score, e.softmax_scale) + score_line_function(e.score, environment) +
         run_functions(e, environment) + classify_function(e, environment) +
         bounds_function(e, environment, true) + bounds_function(e, environment, false) +
         row_bounds_function(e, environment);
}

}  // namespace attune::expr
