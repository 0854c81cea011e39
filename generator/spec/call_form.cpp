#include "generator/spec/call_form.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "generator/spec/number.hpp"
#include "generator/spec/yaml_tree.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

using ReadValues = std::array<std::optional<double>, kMostCallArguments>;

Error problem(const CallKind& kind, std::string_view what, std::string message,
              std::string hint = {}) {
  return {.kind = ErrorKind::kBadInput,
          .id = fmt::format("{}-{}", kind.id, what),
          .message = std::move(message),
          .hint = std::move(hint)};
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// "uniform(low, high)"
std::string usage(const CallForm& form) {
  std::vector<std::string_view> names;
  for (const CallArgument& argument : form.arguments) names.push_back(argument.name);
  return names.empty() ? std::string(form.name)
                       : fmt::format("{}({})", form.name, fmt::join(names, ", "));
}

// One of the comma-separated parts: which argument it is for, and its value.
Status read_argument(const CallForm& form, std::string_view part, std::size_t index,
                     const CallKind& kind, ReadValues& values) {
  std::size_t slot = index;
  if (const auto equals = part.find_first_of("=:"); equals != std::string_view::npos) {
    const std::string_view name = trimmed(part.substr(0, equals));
    slot = static_cast<std::size_t>(std::ranges::find(form.arguments, name, &CallArgument::name) -
                                    form.arguments.begin());
    if (slot == form.arguments.size()) {
      return problem(kind, "argument",
                     fmt::format("`{}` has no argument {}", form.name, quoted(name)),
                     fmt::format("it is `{}`", usage(form)));
    }
    part = trimmed(part.substr(equals + 1));
  }
  if (slot >= form.arguments.size() || values[slot]) {
    return problem(kind, "argument", fmt::format("`{}` has an argument too many", form.name),
                   fmt::format("it is `{}`", usage(form)));
  }
  const ParsedNumber number = parse_number(part);
  const CallArgument& argument = form.arguments[slot];
  if (!number.is_number()) {
    return problem(kind, "argument",
                   fmt::format("`{}` of `{}` must be a number, found {}", argument.name, form.name,
                               quoted(part)));
  }
  if (number.real < argument.least || number.real > argument.largest) {
    return problem(kind, "argument",
                   fmt::format("`{}` of `{}` is {}, not in {} to {}", argument.name, form.name,
                               part, argument.least, argument.largest));
  }
  values[slot] = number.real;
  return ok_status();
}

}  // namespace

Result<CallText> split_call(std::string_view text, const CallKind& kind) {
  text = trimmed(text);
  const auto open = text.find('(');
  CallText call{.name = trimmed(text.substr(0, open)), .inside = {}};
  if (open == std::string_view::npos) return call;
  if (!text.ends_with(')')) {
    return problem(kind, "syntax", fmt::format("{} has no `)` at its end", quoted(text)),
                   fmt::format("as in `{}`", kind.example));
  }
  call.inside = trimmed(text.substr(open + 1, text.size() - open - 2));
  return call;
}

Error unknown_call(std::string_view name, std::span<const std::string_view> known,
                   const CallKind& kind) {
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) hint = fmt::format("a {} is {}", kind.noun, join_names(known));
  return problem(kind, "unknown", fmt::format("no {} is called {}", kind.noun, quoted(name)),
                 std::move(hint));
}

Result<CallValues> read_call(const CallForm& form, std::string_view inside, const CallKind& kind) {
  ReadValues values;
  for (std::size_t index = 0; !inside.empty(); ++index) {
    const auto comma = inside.find(',');
    ATT_CHECK(read_argument(form, trimmed(inside.substr(0, comma)), index, kind, values));
    inside =
        comma == std::string_view::npos ? std::string_view() : trimmed(inside.substr(comma + 1));
  }
  CallValues read{};
  for (std::size_t i = 0; i < form.arguments.size(); ++i) {
    read[i] = values[i].value_or(form.arguments[i].otherwise);
    if (std::isnan(read[i])) {
      return problem(kind, "argument",
                     fmt::format("`{}` lacks `{}`", form.name, form.arguments[i].name),
                     fmt::format("it is `{}`", usage(form)));
    }
  }
  const bool is_range = form.arguments.size() == 2 && form.arguments[0].name == "low";
  if (is_range && read[0] > read[1])
    return problem(kind, "argument", fmt::format("`low` of `{}` is above `high`", form.name));
  return read;
}

std::string call_text(const CallForm& form, const CallValues& values) {
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < form.arguments.size(); ++i)
    arguments.push_back(fmt::format("{}={}", form.arguments[i].name, values[i]));
  return arguments.empty() ? std::string(form.name)
                           : fmt::format("{}({})", form.name, fmt::join(arguments, ", "));
}

}  // namespace attune
