#include "cli/misuse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "generator/support/suggest.hpp"

namespace attune::cli {
namespace {

void find_owners(const CommandLine& command, const std::string& option,
                 std::vector<std::string>* owners) {
  if (command.option_names().contains(option)) owners->push_back(command.full_name());
  for (const CommandLine& one : command.commands()) find_owners(one, option, owners);
}

Error usage(std::string message, std::string hint) {
  return {.kind = ErrorKind::kBadInput,
          .id = "usage",
          .message = std::move(message),
          .hint = std::move(hint)};
}

std::string help_hint(const CommandLine& command) {
  return fmt::format("`{} --help` shows what it takes", command.full_name());
}

std::vector<std::string_view> views(const auto& names) { return {names.begin(), names.end()}; }

Error unknown_option(const CommandLine& program, const CommandLine& command,
                     const std::string& option) {
  std::set<std::string> known = command.option_names();
  known.merge(program.option_names());  // may follow the command
  // Any letter is near to any other.
  std::string hint = option.starts_with("--") ? did_you_mean(option, views(known)) : "";
  if (std::vector<std::string> owners; hint.empty()) {
    find_owners(program, option, &owners);
    if (!owners.empty()) hint = fmt::format("it is an option of {}", join_names(views(owners)));
  }
  if (hint.empty()) hint = help_hint(command);
  return usage(fmt::format("`{}` has no option `{}`", command.full_name(), option),
               std::move(hint));
}

Error unknown_command(const CommandLine& command, const std::string& word) {
  std::vector<std::string> known;
  for (const CommandLine& one : command.commands()) known.push_back(one.name());
  std::string hint = did_you_mean(word, views(known));
  if (hint.empty()) hint = "one of " + join_names(views(known));
  return usage(fmt::format("`{}` has no command `{}`", command.full_name(), word), std::move(hint));
}

}  // namespace

Error describe_misuse(const CommandLine& program, const Reading& reading) {
  const CommandLine command = program.innermost();
  const std::vector<std::string>& left = reading.left_over;
  // What else is wrong mostly follows from an unknown word: its value was taken for a SPEC. Only a
  // value that an option refused does not.
  if (reading.outcome != Reading::Outcome::kBadValue && !left.empty()) {
    const std::string word = left.front().substr(0, left.front().find('='));
    if (word.starts_with('-')) return unknown_option(program, command, word);
    if (!command.commands().empty()) return unknown_command(command, word);
    return usage(fmt::format("`{}` takes no `{}` here", command.full_name(), word),
                 help_hint(command));
  }
  return usage(reading.text, help_hint(command));
}

std::optional<Error> unknown_word(const CommandLine& program, std::span<char* const> words) {
  CommandLine at = program;
  for (const std::string word : words) {
    const std::vector<CommandLine> known = at.commands();
    if (known.empty()) break;
    if (word.starts_with('-')) continue;
    const auto found = std::ranges::find(known, word, &CommandLine::name);
    if (found == known.end()) return unknown_command(at, word);
    at = *found;
  }
  return std::nullopt;
}

}  // namespace attune::cli
