// A plan's text: one word for each choice, the same back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "generator/plan/family.hpp"
#include "generator/plan/plan.hpp"

namespace attune {
namespace {

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const auto begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const auto end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace

std::string_view to_string(Family family) {
  switch (family) {
    case Family::kSm80:
      return "sm80";
    case Family::kSm90a:
      return "sm90a";
    case Family::kCpu:
      return "cpu";
    case Family::kDecode:
      return "decode";
    case Family::kSm90aOrdered:
      return "sm90a_ordered";
    case Family::kMla:
      return "mla";
    case Family::kSm90aWide:
      return "sm90a_wide";
  }
  return "unknown";
}

Error plan_text_error(std::string message) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "plan-bad-text",
               .message = std::move(message),
               .hint = "a plan reads like `sm80 forward sm_80 q128 k64 s2 w4 c32 u1 qreg frozen`"};
}

bool parse_word(std::string_view word, std::string_view prefix, int& value) {
  if (!word.starts_with(prefix)) return false;
  word.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() && value >= 0;
}

Status parse_numbers(std::span<const std::string_view> words,
                     std::initializer_list<PlanNumber> numbers, std::string_view plan) {
  for (const std::string_view word : words) {
    if (std::ranges::none_of(numbers, [&](const PlanNumber& number) {
          return parse_word(word, number.prefix, *number.value);
        })) {
      return plan_text_error(fmt::format("`{}` is no word of {}", word, plan));
    }
  }
  if (words.size() == numbers.size()) return ok_status();
  std::string prefixes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    prefixes += fmt::format("{}{}",
                            i == 0                    ? ""
                            : i + 1 == numbers.size() ? " and "
                                                      : ", ",
                            numbers.begin()[i].prefix);
  }
  return plan_text_error(fmt::format("{} needs {} once each", plan, prefixes));
}

std::string to_string(const KernelPlan& plan) {
  const FamilyOperations* family = family_operations(plan);
  return fmt::format("{} {} {}{}{}{}{}", to_string(plan.family()), to_string(plan.pass),
                     to_string(plan.target),
                     plan.residues > 1 ? fmt::format(" residues{}", plan.residues) : "",
                     plan.by_runs ? " runs" : "", family ? " " : "",
                     family ? family->tile_text(plan) : std::string());
}

Result<KernelPlan> parse_plan(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  if (words.size() < 3) return plan_text_error("a plan needs a family, a pass and a target");
  KernelPlan plan;
  if (words[1] != to_string(Pass::kForward) && words[1] != to_string(Pass::kBackward)) {
    return plan_text_error(fmt::format("unknown pass `{}`", words[1]));
  }
  plan.pass = words[1] == to_string(Pass::kForward) ? Pass::kForward : Pass::kBackward;
  const FamilyOperations* family = nullptr;
  bool is_known = false;
  for (const FamilyAccessor accessor : family_table()) {
    if (accessor().name != words[0]) continue;
    is_known = true;
    if (accessor().pass == plan.pass) family = &accessor();
  }
  if (!is_known) return plan_text_error(fmt::format("unknown family `{}`", words[0]));
  if (family == nullptr) {
    return plan_text_error(fmt::format("the {} family has no {} pass", words[0], words[1]));
  }
  const std::optional<Target> target = target_from_string(words[2]);
  if (!target) return plan_text_error(fmt::format("unknown target `{}`", words[2]));
  plan.target = *target;
  std::span<const std::string_view> rest = std::span(words).subspan(3);
  if (!rest.empty() && parse_word(rest.front(), "residues", plan.residues)) rest = rest.subspan(1);
  plan.by_runs = !rest.empty() && rest.front() == "runs";
  if (plan.by_runs) rest = rest.subspan(1);
  ATT_CHECK(family->parse_tile(rest, plan));
  if (to_string(plan) != fmt::format("{}", fmt::join(words, " "))) {
    return plan_text_error(fmt::format("`{}` is not a plan's canonical text", text));
  }
  return plan;
}

}  // namespace attune
