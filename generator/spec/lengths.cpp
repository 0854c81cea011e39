#include "generator/spec/lengths.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generator/expr/ast.hpp"
#include "generator/spec/limits.hpp"
#include "generator/spec/number.hpp"
#include "generator/spec/yaml_tree.hpp"

namespace attune {
namespace {

constexpr CallKind kLengthsCall{
    .id = "lengths", .noun = "kind of lengths", .example = "uniform(low=0.3, high=1)"};

struct LengthsForm {
  LengthsKind kind;
  CallForm call;
};

const std::array<LengthsForm, 3>& lengths_forms() {
  static const std::array<LengthsForm, 3> kForms{{
      {LengthsKind::kEqual, {"equal", {}}},
      {LengthsKind::kUniform, {"uniform", {{"low", 0, 1}, {"high", 0, 1, 1}}}},
      {LengthsKind::kSkewed, {"skewed", {{"longest", 0, 1}}}},
  }};
  return kForms;
}

Error bad_list(std::string message, std::string hint = {}) {
  return {.kind = ErrorKind::kBadInput,
          .id = "lengths-list",
          .message = std::move(message),
          .hint = std::move(hint)};
}

Result<Lengths> parse_list(std::string_view text) {
  constexpr std::string_view kBetween = ", \t\r\n";
  Lengths lengths{.kind = LengthsKind::kGiven};
  for (auto begin = text.find_first_not_of(kBetween); begin != std::string_view::npos;) {
    const auto end = std::min(text.find_first_of(kBetween, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const ParsedNumber number = parse_number(word);
    if (number.status != ParsedNumber::Status::kInteger || number.integer < 0 ||
        number.integer > expr::kMaxSequenceLength) {
      return bad_list(fmt::format("length {} is {}, no number from 0 to {}", lengths.given.size(),
                                  quoted(word), expr::kMaxSequenceLength));
    }
    if (std::ssize(lengths.given) == kMaxBatch)
      return bad_list(fmt::format("there are more than {} lengths", kMaxBatch));
    lengths.given.push_back(static_cast<std::int32_t>(number.integer));
    begin = text.find_first_not_of(kBetween, end);
  }
  return lengths;
}

}  // namespace

std::string to_string(const Lengths& lengths) {
  if (lengths.kind == LengthsKind::kGiven) return fmt::format("{}", fmt::join(lengths.given, ", "));
  const auto* const form = std::ranges::find(lengths_forms(), lengths.kind, &LengthsForm::kind);
  return form == lengths_forms().end() ? "" : call_text(form->call, lengths.arguments);
}

Result<Lengths> parse_lengths(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n,");
  if (first != std::string_view::npos && text.find_first_of("0123456789-+.", first) == first)
    return parse_list(text);
  ATT_TRY(const CallText call, split_call(text, kLengthsCall));
  const auto* const form = std::ranges::find(
      lengths_forms(), call.name, [](const LengthsForm& known) { return known.call.name; });
  if (form == lengths_forms().end()) {
    std::vector<std::string_view> names;
    for (const LengthsForm& known : lengths_forms()) names.push_back(known.call.name);
    return unknown_call(call.name, names, kLengthsCall);
  }
  ATT_TRY(const CallValues values, read_call(form->call, call.inside, kLengthsCall));
  return Lengths{.kind = form->kind, .arguments = values, .given = {}};
}

}  // namespace attune
