#include "generator/spec/spec_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/spec/limits.hpp"
#include "generator/spec/number.hpp"
#include "generator/support/suggest.hpp"

namespace attune {

Error SpecReader::wrong_type(std::string_view key, const YamlNode& node,
                             std::string_view expected) const {
  const bool is_text = node.kind == YamlNode::Kind::kScalar;
  std::string hint;
  if (is_text && !node.plain && !expected.starts_with("a mapping"))
    hint = "without quotes, if that is what you mean";
  return error(node, "spec-type",
               fmt::format("`{}` must be {}, found {}", key, expected,
                           is_text ? quoted(node.text) : std::string(describe(node.kind))),
               std::move(hint));
}

namespace {

// What arguments of other libraries are in a spec.
struct ForeignKey {
  std::string_view key, hint;
};
constexpr std::string_view kOfTheShape =
    "sizes are the launch's: `--shape heads=8,q_len=512`, or `tune: shapes:`";
constexpr ForeignKey kForeignKeys[] = {
    {"causal", "write `mask: causal`"},
    {"is_causal", "write `mask: causal`, or `causal_top_left`"},
    {"window", "write `mask: sliding_window(n)`, or declare it under `scalars`"},
    {"window_size", "write `mask: local(left, right)`"},
    {"sliding_window", "write `mask: sliding_window(n)`"},
    {"softcap", "write `score: cap * tanh(score / cap)`"},
    {"logit_softcapping", "write `score: cap * tanh(score / cap)`"},
    {"alibi",
     "write `score: score - slope[h] * abs(kv_idx - q_pos)`, with `slope` under `tensors`"},
    {"alibi_slopes",
     "write `score: score - slope[h] * abs(kv_idx - q_pos)`, with `slope` under `tensors`"},
    {"bias", "write `score: score + bias[h, q_idx, kv_idx]`, with `bias` under `tensors`"},
    {"attn_bias", "write `score: score + bias[h, q_idx, kv_idx]`, with `bias` under `tensors`"},
    {"sinks", "write `sink: logit[h]`, with `logit` under `tensors`"},
    {"batch", kOfTheShape},
    {"heads", kOfTheShape},
    {"num_heads", kOfTheShape},
    {"kv_heads", kOfTheShape},
    {"q_len", kOfTheShape},
    {"kv_len", kOfTheShape},
    {"seq_len", kOfTheShape},
};

}  // namespace

Status SpecReader::check_keys(const YamlNode& mapping, std::string_view what,
                              std::span<const KeyRule> rules) const {
  std::vector<std::string_view> names;
  for (const KeyRule& rule : rules) names.push_back(rule.name);
  for (const YamlEntry& entry : mapping.entries) {
    if (std::ranges::find(names, entry.key.text) == names.end()) {
      const auto* foreign = std::ranges::find(kForeignKeys, entry.key.text, &ForeignKey::key);
      std::string hint;
      if (what == "the spec" && foreign != std::end(kForeignKeys)) hint = foreign->hint;
      if (hint.empty()) hint = did_you_mean(entry.key.text, names);
      if (hint.empty()) hint = "known keys are " + join_names(names);
      return error(entry.key, "spec-unknown-key",
                   fmt::format("unknown key {}", quoted(entry.key.text)), std::move(hint));
    }
    if (entry.value.kind == YamlNode::Kind::kNull) {
      return error(entry.key, "spec-empty-value", fmt::format("`{}` has no value", entry.key.text),
                   "leave the key out for its default");
    }
  }
  for (const KeyRule& rule : rules) {
    if (rule.required && !mapping.find(rule.name)) {
      return error(mapping, "spec-missing-key", fmt::format("{} lacks `{}`", what, rule.name));
    }
  }
  return ok_status();
}

Status SpecReader::check_name(std::string_view what, const YamlNode& node) const {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string_view name = node.text;
  const bool spelled =
      !name.empty() && is_letter(name[0]) &&
      std::ranges::all_of(name, [&](char c) { return is_letter(c) || is_digit(c); });
  if (!spelled) {
    return error(node, "spec-name", fmt::format("{} cannot be the name of {}", quoted(name), what),
                 "a name has lower-case letters, digits and `_`, and starts with no digit");
  }
  if (name.size() > kMaxNameLength) {
    return error(node, "spec-name",
                 fmt::format("the name of {} is longer than {} characters", what, kMaxNameLength));
  }
  return ok_status();
}

Result<std::string_view> SpecReader::text(std::string_view key, const YamlNode& node) const {
  if (node.kind != YamlNode::Kind::kScalar) return wrong_type(key, node, "a scalar");
  return std::string_view(node.text);
}

Result<std::size_t> SpecReader::choice(std::string_view key, const YamlNode& node,
                                       std::span<const std::string_view> words) const {
  if (node.kind != YamlNode::Kind::kScalar) return wrong_type(key, node, join_names(words));
  const auto found = std::ranges::find(words, node.text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string hint = did_you_mean(node.text, words);
  if (hint.empty()) hint = fmt::format("`{}` is {}", key, join_names(words));
  return error(node, "spec-unknown-value", fmt::format("`{}` cannot be {}", key, quoted(node.text)),
               std::move(hint));
}

Result<std::int64_t> SpecReader::integer(std::string_view key, const YamlNode& node,
                                         std::int64_t least, std::int64_t largest) const {
  const ParsedNumber number =
      node.kind == YamlNode::Kind::kScalar && node.plain ? parse_number(node.text) : ParsedNumber{};
  using enum ParsedNumber::Status;
  if (number.status == kNone) return wrong_type(key, node, "a whole number");
  if (number.status == kNotFinite)
    return error(node, "spec-not-finite", fmt::format("`{}` is not finite", key));
  if (number.status == kReal) {
    return error(node, "spec-type",
                 fmt::format("`{}` must be a whole number, found {}", key, quoted(node.text)));
  }
  if (number.status == kOverflow || number.integer < least || number.integer > largest) {
    return error(
        node, "spec-out-of-range",
        fmt::format("`{}` is {}, not in {} to {}", key, quoted(node.text), least, largest));
  }
  return number.integer;
}

Result<double> SpecReader::real(std::string_view key, const YamlNode& node) const {
  const ParsedNumber number =
      node.kind == YamlNode::Kind::kScalar && node.plain ? parse_number(node.text) : ParsedNumber{};
  using enum ParsedNumber::Status;
  if (number.status == kNone) return wrong_type(key, node, "a number");
  if (number.status == kNotFinite)
    return error(node, "spec-not-finite", fmt::format("`{}` is not finite", key));
  constexpr double kLargest = std::numeric_limits<float>::max();
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const double size = std::abs(number.real);
  if (number.status == kOverflow || size > kLargest || (size != 0 && size < kSmallest)) {
    return error(node, "spec-out-of-range",
                 fmt::format("`{}` is {}, which fp32 cannot hold", key, quoted(node.text)));
  }
  return number.real;
}

Result<bool> SpecReader::boolean(std::string_view key, const YamlNode& node) const {
  if (node.kind == YamlNode::Kind::kScalar && node.plain) {
    if (node.text == "true") return true;
    if (node.text == "false") return false;
  }
  return wrong_type(key, node, "`true` or `false`");
}

Result<std::span<const YamlNode>> SpecReader::list(std::string_view key,
                                                   const YamlNode& node) const {
  if (node.kind == YamlNode::Kind::kScalar) return std::span(&node, 1);
  if (node.kind != YamlNode::Kind::kSequence) return wrong_type(key, node, "a word or a list");
  if (node.items.empty())
    return error(node, "spec-empty-value", fmt::format("`{}` is an empty list", key),
                 "leave the key out for its default");
  return std::span<const YamlNode>(node.items);
}

}  // namespace attune
