#include "generator/expr/emit_gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <vector>

#include "generator/expr/build.hpp"
#include "generator/expr/derivative.hpp"
#include "generator/expr/emit_value.hpp"
#include "generator/expr/look_up_pattern.hpp"
#include "generator/expr/score_core.hpp"

namespace attune::expr {
namespace {

std::string body_of_pair(const Expr& value, const Expr& gradient, const Environment& environment) {
  std::string text;
  ValueEmitter emitter(environment, text);
  emitter.count(value);
  emitter.count(gradient);
  const std::string of_value = emitter.value(value), of_gradient = emitter.value(gradient);
  return text +
         fmt::format("  return {{{}, {}}};\n", unbracketed(of_value), unbracketed(of_gradient));
}

std::string score_functions(const Expr& score, float scale, const Environment& environment) {
  const Expr s = make_variable(Variable::kScore);
  const Expr gradient = derivative(score, s);
  const ScoreCore made = score_core(score, scale);
  const Expr core_gradient =
      derivative(made.core, s, static_cast<double>(made.multiplier) / static_cast<double>(scale));
  constexpr std::string_view kParameters =
      "([[maybe_unused]] const Context& c, [[maybe_unused]] float s,\n"
      "    [[maybe_unused]] Query q_idx, [[maybe_unused]] Key kv_idx) {\n";
  return fmt::format(
      "\n"
      "// ---- Backward only.\n"
      "\n"
      "// Whether the score' that score() gives always grows as s does.\n"
      "constexpr bool kScoreGradIsOne = {};\n"
      "// d score' / d s, at the s that score() takes.\n"
      "template <typename Query, typename Key>\n"
      "ATT_FN float score_grad{}"
      "{}"
      "}}\n"
      "\n"
      "struct ScoreAndGradient {{\n"
      "  float score, gradient;\n"
      "}};\n"
      "// score() and score_grad(), what they have in common once.\n"
      "template <typename Query, typename Key>\n"
      "ATT_FN ScoreAndGradient score_with_grad{}"
      "{}"
      "}}\n"
      "// score_core(), of the s that it takes, and score_grad().\n"
      "template <typename Query, typename Key>\n"
      "ATT_FN ScoreAndGradient score_core_with_grad{}"
      "{}"
      "}}\n",
      is_one(gradient), kParameters, emit_value(gradient, environment), kParameters,
      body_of_pair(score, gradient, environment), kParameters,
      body_of_pair(made.core, core_gradient, environment));
}

// Of a score whose core is known to be a logistic function.
std::string logistic_slope(const Expr& score, float scale) {
  const auto logistic = score_logistic(score, scale);
  const double slope = logistic ? -std::numbers::ln2 * logistic->step *
                                      double{score_core(score, scale).multiplier} / double{scale}
                                : 0;
  return fmt::format(
      "// With kScoreIsLogistic, score_core() of s being t, score_grad() is t * (1 - t) times it; "
      "0:\n"
      "// it cannot be told so.\n"
      "constexpr float kLogisticSlope = {};\n",
      float_literal(is_normal_float(slope) ? slope : 0));
}

// "true, false" of what `property` says of each look-up; one more than none, for arrays have a
// size.
template <typename Property>
std::string list(const std::vector<LookUpDerivative>& look_ups, const Property& property) {
  std::string text;
  for (const LookUpDerivative& d : look_ups)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", property(d));
  return text.empty() ? std::string("0") : text;
}

// Two more spaces before every line.
std::string indented(const std::string& lines) {
  std::string text;
  for (const char c : lines) {
    if (text.empty() || text.back() == '\n') text += "  ";
    text += c;
  }
  return text;
}

// `if constexpr` for each look-up, with the lines and the result that `make` gives.
template <typename Make>
std::string choice(const std::vector<LookUpDerivative>& look_ups, const Environment& environment,
                   const Make& make) {
  std::string text;
  for (std::size_t i = 0; i < look_ups.size(); ++i) {
    std::string lines;
    ValueEmitter emitter(environment, lines);
    const std::string result = make(emitter, look_ups[i]);
    text += fmt::format("{}if constexpr (kLoad == {}) {{\n{}    return {};\n  }} else ",
                        i == 0 ? "  " : "", i, indented(lines), unbracketed(result));
  }
  return text.empty() ? "  return 0;\n" : text + "{\n    return 0;\n  }\n";
}

std::string offset(ValueEmitter& emitter, const Expr& look_up) {
  for (const Expr& index : look_up->args) emitter.count(index);
  return emitter.offset(look_up);
}

// The look-up with 0 for what depends on the position.
Expr first_of_block(const Expr& look_up, const Environment& environment) {
  const LookUpPattern pattern = look_up_pattern(look_up, environment);
  std::vector<Expr> indices = look_up->args;
  for (auto i = static_cast<std::size_t>(pattern.first_position_dim); i < indices.size(); ++i)
    indices[i] = make_int(0);
  return make_load(look_up->slot, look_up->type, std::move(indices),
                   look_up->clamped & ((1u << pattern.first_position_dim) - 1));
}

std::string partial(ValueEmitter& emitter, const LookUpDerivative& d) {
  emitter.count(d.partial);
  return emitter.value(d.partial);
}

// An element that only one of these look-ups has, and only of one pair.
std::string exclusive_flags(const std::vector<LookUpDerivative>& look_ups,
                            const std::vector<LookUpDerivative>& sink_look_ups,
                            const Environment& environment) {
  return list(look_ups, [&](const LookUpDerivative& d) {
    const auto is_of_tensor = [&](const LookUpDerivative& other) {
      return other.look_up->slot == d.look_up->slot;
    };
    const auto count = std::ranges::count_if(look_ups, is_of_tensor) +
                       std::ranges::count_if(sink_look_ups, is_of_tensor);
    return count == 1 && look_up_pattern(d.look_up, environment).is_exclusive();
  });
}

std::string score_look_ups(const std::vector<LookUpDerivative>& look_ups,
                           const std::vector<LookUpDerivative>& sink_look_ups,
                           const Environment& environment) {
  const auto flags = [&](auto member) {
    return list(look_ups, [&](const LookUpDerivative& d) {
      return look_up_pattern(d.look_up, environment).*member;
    });
  };
  return fmt::format(
      "\n"
      "// Different look-ups of tensors that learn. Of each, by constants: the tensor; whether\n"
      "// score_grad_load() is always 1; how its element varies; how many elements of\n"
      "// consecutive offsets one (b, h) has for it, 0 when that depends on a length; whether no\n"
      "// two pairs share an element.\n"
      "constexpr int kGradLoads = {};\n"
      "constexpr int kGradLoadSlot[] = {{{}}};\n"
      "constexpr bool kGradLoadIsOne[] = {{{}}};\n"
      "constexpr bool kGradLoadVariesByQuery[] = {{{}}};\n"
      "constexpr bool kGradLoadVariesByKey[] = {{{}}};\n"
      "constexpr bool kGradLoadIsDistance[] = {{{}}};\n"
      "constexpr int kGradLoadBins[] = {{{}}};\n"
      "constexpr bool kGradLoadIsExclusive[] = {{{}}};\n"
      "// Offset of look-up kLoad's element in its tensor.\n"
      "template <int kLoad, typename Query, typename Key>\n"
      "ATT_FN long long grad_load_offset([[maybe_unused]] const Context& c,\n"
      "                                  [[maybe_unused]] Query q_idx,\n"
      "                                  [[maybe_unused]] Key kv_idx) {{\n"
      "{}"
      "}}\n"
      "// Of the first of its kGradLoadBins elements.\n"
      "template <int kLoad>\n"
      "ATT_FN long long grad_load_base([[maybe_unused]] const Context& c) {{\n"
      "{}"
      "}}\n"
      "// d score' / d that element.\n"
      "template <int kLoad, typename Query, typename Key>\n"
      "ATT_FN float score_grad_load([[maybe_unused]] const Context& c, [[maybe_unused]] float s,\n"
      "                             [[maybe_unused]] Query q_idx, [[maybe_unused]] Key kv_idx) {{\n"
      "{}"
      "}}\n",
      look_ups.size(), list(look_ups, [](const auto& d) { return d.look_up->slot; }),
      list(look_ups, [](const auto& d) { return is_one(d.partial); }),
      flags(&LookUpPattern::varies_by_query), flags(&LookUpPattern::varies_by_key),
      flags(&LookUpPattern::is_distance), flags(&LookUpPattern::bins),
      exclusive_flags(look_ups, sink_look_ups, environment),
      choice(look_ups, environment,
             [](ValueEmitter& emitter, const auto& d) { return offset(emitter, d.look_up); }),
      choice(look_ups, environment,
             [&](ValueEmitter& emitter, const auto& d) {
               return offset(emitter, first_of_block(d.look_up, environment));
             }),
      choice(look_ups, environment, partial));
}

std::string sink_look_ups(const std::vector<LookUpDerivative>& look_ups,
                          const Environment& environment) {
  return fmt::format(
      "\n"
      "// The same of the sink: look-ups, and d sink / d element.\n"
      "constexpr int kSinkGradLoads = {};\n"
      "constexpr int kSinkGradLoadSlot[] = {{{}}};\n"
      "template <int kLoad>\n"
      "ATT_FN long long sink_grad_load_offset([[maybe_unused]] const Context& c) {{\n"
      "{}"
      "}}\n"
      "template <int kLoad>\n"
      "ATT_FN float sink_grad_load([[maybe_unused]] const Context& c) {{\n"
      "{}"
      "}}\n",
      look_ups.size(), list(look_ups, [](const auto& d) { return d.look_up->slot; }),
      choice(look_ups, environment,
             [](ValueEmitter& emitter, const auto& d) { return offset(emitter, d.look_up); }),
      choice(look_ups, environment, partial));
}

}  // namespace

std::string emit_gradients(const HeadExpressions& e, const Environment& environment) {
  const Expr score = e.score ? e.score : make_variable(Variable::kScore);
  const std::vector<LookUpDerivative> of_score = look_up_derivatives(score, environment);
  const std::vector<LookUpDerivative> of_sink = look_up_derivatives(e.sink, environment);
  return score_functions(score, e.softmax_scale, environment) +
         logistic_slope(score, e.softmax_scale) + score_look_ups(of_score, of_sink, environment) +
         sink_look_ups(of_sink, environment);
}

}  // namespace attune::expr
