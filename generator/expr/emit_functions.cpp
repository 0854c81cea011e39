#include "generator/expr/emit_functions.hpp"

#include <fmt/format.h>

#include "generator/expr/emit_value.hpp"

namespace attune::expr {

std::string emit_functions(const HeadExpressions& e, const Environment& environment) {
  std::string text =
      "// True when the key is live. Any q_idx, kv_idx >= 0: look-ups stay inside their tensors.\n"
      "ATT_FN bool mask([[maybe_unused]] const Context& c, [[maybe_unused]] int q_idx,\n"
      "                 [[maybe_unused]] int kv_idx) {\n";
  text += e.mask ? emit_value(e.mask, environment) : "  return true;\n";
  text +=
      "}\n"
      "\n"
      "// Natural-unit score of one element from its scaled product s.\n"
      "ATT_FN float score([[maybe_unused]] const Context& c, [[maybe_unused]] float s,\n"
      "                   [[maybe_unused]] int q_idx, [[maybe_unused]] int kv_idx) {\n";
  text += e.score ? emit_value(e.score, environment) : "  return s;\n";
  text +=
      "}\n"
      "\n"
      "// The logit that joins the softmax' denominator.\n"
      "ATT_FN float sink([[maybe_unused]] const Context& c) {\n";
  text += e.sink ? emit_value(e.sink, environment) : "  return 0.0f;\n";
  text +=
      "}\n"
      "\n"
      "// Class of the box [q0, q1) x [k0, k1).\n"
      "ATT_FN TileClass classify_tile(const Context&, int, int, int, int) {\n";
  text += fmt::format("  return TileClass::{};\n", e.mask ? "kPartial" : "kFull");
  text +=
      "}\n"
      "\n"
      "// Keys outside [begin, end) are dead for every query of [q0, q1).\n"
      "ATT_FN KvBounds kv_bounds(const Context& c, int, int) { return {0, c.kv_len}; }\n";
  return text;
}

}  // namespace attune::expr
