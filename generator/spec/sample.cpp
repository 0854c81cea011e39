#include "generator/spec/sample.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "generator/spec/number.hpp"
#include "generator/spec/yaml_tree.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kMost = std::numeric_limits<std::int32_t>::max();

struct Argument {
  std::string_view name;
  double least, largest;
  double otherwise = kNone;  // NaN: it must be said
};

enum Types : std::uint8_t { kInts = 1, kReals = 2, kBools = 4 };

struct Form {
  SampleKind kind;
  std::string_view name;
  int types;
  std::size_t least_dims;
  std::vector<Argument> arguments;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> kForms = {
      {SampleKind::kConstant, "constant", kInts | kReals | kBools, 0, {{"value", -kMost, kMost}}},
      {SampleKind::kUniform,
       "uniform",
       kInts | kReals,
       0,
       {{"low", -kMost, kMost}, {"high", -kMost, kMost}}},
      {SampleKind::kNormal,
       "normal",
       kReals,
       0,
       {{"mean", -kMost, kMost, 0}, {"deviation", 0, kMost, 1}}},
      {SampleKind::kSorted,
       "sorted",
       kInts | kReals,
       1,
       {{"low", -kMost, kMost}, {"high", -kMost, kMost}}},
      {SampleKind::kSegments, "segments", kInts, 1, {{"mean", 1, kMost}}},
      {SampleKind::kPermutation, "permutation", kInts, 1, {}},
      {SampleKind::kSubtreeEnds, "subtree_ends", kInts, 1, {{"branch", 1.01, 1000, 3}}},
      {SampleKind::kAncestors, "ancestors", kBools, 2, {{"branch", 1.01, 1000, 3}}},
      {SampleKind::kLengths, "lengths", kInts, 0, {{"low", 0, 1}, {"high", 0, 1}}},
      {SampleKind::kChance, "chance", kBools, 0, {{"share", 0, 1}}},
      {SampleKind::kSlopes, "slopes", kReals, 1, {}},
  };
  return kForms;
}

const Form* form_of(SampleKind kind) {
  const auto at = std::ranges::find(forms(), kind, &Form::kind);
  return at == forms().end() ? nullptr : &*at;
}

int types_of(expr::TensorType type) {
  return type == expr::TensorType::kInt32  ? kInts
         : type == expr::TensorType::kBool ? kBools
                                           : kReals;
}

Error problem(std::string id, std::string message, std::string hint = {}) {
  return {.kind = ErrorKind::kBadInput,
          .id = std::move(id),
          .message = std::move(message),
          .hint = std::move(hint)};
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// "uniform(low, high)"
std::string usage(const Form& form) {
  std::vector<std::string_view> names;
  for (const Argument& argument : form.arguments) names.push_back(argument.name);
  return names.empty() ? std::string(form.name)
                       : fmt::format("{}({})", form.name, fmt::join(names, ", "));
}

// One of the comma-separated parts: which argument it is for, and its value.
Status read_argument(const Form& form, std::string_view part, std::size_t index,
                     std::vector<std::optional<double>>& values) {
  std::size_t slot = index;
  if (const auto equals = part.find_first_of("=:"); equals != std::string_view::npos) {
    const std::string_view name = trimmed(part.substr(0, equals));
    slot = static_cast<std::size_t>(std::ranges::find(form.arguments, name, &Argument::name) -
                                    form.arguments.begin());
    if (slot == form.arguments.size()) {
      return problem("sample-argument",
                     fmt::format("`{}` has no argument {}", form.name, quoted(name)),
                     fmt::format("it is `{}`", usage(form)));
    }
    part = trimmed(part.substr(equals + 1));
  }
  if (slot >= form.arguments.size() || values[slot]) {
    return problem("sample-argument", fmt::format("`{}` has an argument too many", form.name),
                   fmt::format("it is `{}`", usage(form)));
  }
  const ParsedNumber number = parse_number(part);
  const Argument& argument = form.arguments[slot];
  if (!number.is_number()) {
    return problem("sample-argument", fmt::format("`{}` of `{}` must be a number, found {}",
                                                  argument.name, form.name, quoted(part)));
  }
  if (number.real < argument.least || number.real > argument.largest) {
    return problem("sample-argument",
                   fmt::format("`{}` of `{}` is {}, not in {} to {}", argument.name, form.name,
                               part, argument.least, argument.largest));
  }
  values[slot] = number.real;
  return ok_status();
}

Status check_tensor(const Form& form, const expr::TensorDecl& tensor) {
  if ((form.types & types_of(tensor.type)) == 0) {
    constexpr std::pair<int, std::string_view> kWords[] = {
        {kInts, "int32"}, {kReals, "float32, fp16 or bf16"}, {kBools, "bool"}};
    std::vector<std::string_view> words;
    for (const auto& [type, word] : kWords) {
      if (form.types & type) words.push_back(word);
    }
    return problem("sample-type",
                   fmt::format("`{}` is for tensors of {}", form.name, fmt::join(words, " or ")));
  }
  if (tensor.dims.size() < form.least_dims) {
    return problem("sample-type",
                   fmt::format("`{}` is for tensors of {} dims and more, `{}` has {}", form.name,
                               form.least_dims, tensor.name, tensor.dims.size()));
  }
  return ok_status();
}

}  // namespace

std::string to_string(const Sample& sample) {
  if (sample.kind == SampleKind::kGiven) return "given";
  const Form* form = form_of(sample.kind);
  if (form == nullptr) return "";
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < form->arguments.size(); ++i)
    arguments.push_back(fmt::format("{}={}", form->arguments[i].name, sample.arguments[i]));
  return arguments.empty() ? std::string(form->name)
                           : fmt::format("{}({})", form->name, fmt::join(arguments, ", "));
}

Result<Sample> parse_sample(std::string_view text, const expr::TensorDecl& tensor) {
  text = trimmed(text);
  const auto open = text.find('(');
  const std::string_view name = trimmed(text.substr(0, open));
  std::string_view inside;
  if (open != std::string_view::npos) {
    if (!text.ends_with(')')) {
      return problem("sample-syntax", fmt::format("{} has no `)` at its end", quoted(text)),
                     "as in `segments(mean=700)`");
    }
    inside = trimmed(text.substr(open + 1, text.size() - open - 2));
  }
  const auto form = std::ranges::find(forms(), name, &Form::name);
  if (form == forms().end()) {
    std::vector<std::string_view> names;
    for (const Form& known : forms()) names.push_back(known.name);
    std::string hint = did_you_mean(name, names);
    if (hint.empty()) hint = "a sample is " + join_names(names);
    return problem("sample-unknown", fmt::format("no sample is called {}", quoted(name)),
                   std::move(hint));
  }
  ATT_CHECK(check_tensor(*form, tensor));
  std::vector<std::optional<double>> values(form->arguments.size());
  for (std::size_t index = 0; !inside.empty(); ++index) {
    const auto comma = inside.find(',');
    ATT_CHECK(read_argument(*form, trimmed(inside.substr(0, comma)), index, values));
    inside =
        comma == std::string_view::npos ? std::string_view() : trimmed(inside.substr(comma + 1));
  }
  Sample sample{.kind = form->kind};
  for (std::size_t i = 0; i < values.size(); ++i) {
    sample.arguments[i] = values[i].value_or(form->arguments[i].otherwise);
    if (std::isnan(sample.arguments[i])) {
      return problem("sample-argument",
                     fmt::format("`{}` lacks `{}`", form->name, form->arguments[i].name),
                     fmt::format("it is `{}`", usage(*form)));
    }
  }
  const bool is_range = values.size() == 2 && form->arguments[0].name == "low";
  if (is_range && sample.arguments[0] > sample.arguments[1]) {
    return problem("sample-argument", fmt::format("`low` of `{}` is above `high`", form->name));
  }
  return sample;
}

}  // namespace attune
