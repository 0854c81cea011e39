#include "generator/expr/foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/expr/masks.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/scope.hpp"

namespace attune::expr {
namespace {

constexpr std::array<ForeignOperator, 12> kOperators = {{
    {"&&", "write `and`"},
    {"||", "write `or`"},
    {"**", "write a product or `pow(x, y)`"},
    {"!", "write `not`"},
    {"~", "write `not` for booleans, `-1 - x` for the bits of an int32"},
    {"?", "write `x if condition else y`"},
    // As word processors and papers have them.
    {"\u2264", "write `<=`"},
    {"\u2265", "write `>=`"},
    {"\u2260", "write `!=`"},
    {"\u2212", "write `-`"},
    {"\u00d7", "write `*`"},
    {"\u00b7", "write `*`"},
}};

struct ForeignWord {
  std::string_view word, hint;
};
constexpr std::string_view kEverything = "leave `mask` out: then every query sees every key";
constexpr std::string_view kNoInfinity = "keys that count for nothing belong into `mask`";
constexpr std::string_view kNoSums =
    "an expression sees one query and one key: compute it beforehand, and look it up in a tensor";
constexpr std::string_view kShortSums =
    "over a few elements of a tensor it is `any(i, 8, t[h, i] == kv_idx)`, with a counter";
constexpr std::string_view kNotTheNumber = "bring the number as one of the `scalars`";
constexpr ForeignWord kWords[] = {
    {"where", "write `x if condition else y`"},
    {"select", "write `x if condition else y`"},
    {"full", kEverything},
    {"none", kEverything},
    {"None", kEverything},
    {"noop", kEverything},
    {"noop_mask", kEverything},
    {"bidirectional", kEverything},
    {"and_masks", "write `a and b`"},
    {"or_masks", "write `a or b`"},
    {"logical_and", "write `a and b`"},
    {"logical_or", "write `a or b`"},
    {"logical_not", "write `not a`"},
    {"logical_xor", "write `a != b`"},
    {"bitwise_and", "write `a & b`"},
    {"bitwise_or", "write `a | b`"},
    {"bitwise_xor", "write `a ^ b`"},
    {"power", "write `pow(x, y)`"},
    {"square", "write `x * x`"},
    {"rsqrt", "write `1 / sqrt(x)`"},
    {"maximum", "write `max(x, y)`"},
    {"minimum", "write `min(x, y)`"},
    {"clamp", "write `min(max(x, low), high)`"},
    {"clip", "write `min(max(x, low), high)`"},
    {"relu", "write `max(x, 0)`"},
    {"fmod", "write `x % y`"},
    {"int", "write `floor(x)`"},
    {"round", "write `floor(x + 0.5)`"},
    {"ceil", "write `-floor(-x)`"},
    {"sign", "write `1 if x > 0 else -1 if x < 0 else 0`"},
    {"log1p", "write `log(1 + x)`"},
    {"expm1", "write `exp(x) - 1`"},
    {"log10", "write `log(x) / log(10)`"},
    {"logsigmoid", "write `-softplus(-x)`"},
    {"softcap", "write `cap * tanh(score / cap)`"},
    {"pi", "write `3.14159265`"},
    {"inf", kNoInfinity},
    {"infinity", kNoInfinity},
    {"sum", kShortSums},
    {"dot", kShortSums},
    {"mean", kNoSums},
    {"any", kShortSums},
    {"all", kShortSums},
    {"cumsum", kNoSums},
    {"softmax", kNoSums},
    {"q", kNoSums},
    {"k", kNoSums},
    {"v", kNoSums},
    {"batch", kNotTheNumber},
    {"heads", kNotTheNumber},
    {"kv_heads", kNotTheNumber},
    {"head_dim", kNotTheNumber},
};

}  // namespace

std::span<const ForeignOperator> foreign_operators() { return kOperators; }

std::string_view foreign_word_hint(std::string_view word) {
  const auto* found = std::ranges::find(kWords, word, &ForeignWord::word);
  return found == std::end(kWords) ? std::string_view() : found->hint;
}

std::string_view word_for_bits(Op op) {
  return op == Op::kBitAnd ? "and" : op == Op::kBitOr ? "or" : "!=";
}

std::string dotted_name_hint(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  const auto functions = function_names();
  const auto function = std::ranges::find(functions, last, &FunctionName::name);
  if (function != functions.end()) {
    return fmt::format("write `{}({})`", last, function->arguments == 2 ? "x, y" : "x");
  }
  const auto definitions = mask_definitions();
  const auto definition = std::ranges::find(definitions, last, &Definition::name);
  if (definition != definitions.end()) return "write " + signature(*definition);
  const std::string_view hint = foreign_word_hint(last);
  return hint.empty() ? "names have no parts: there are neither modules nor members"
                      : std::string(hint);
}

}  // namespace attune::expr
