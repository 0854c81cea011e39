#include "cli/misuse.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "generator/support/suggest.hpp"

namespace attune::cli {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
}

// "attune cache ls"
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

// With their dashes.
std::set<std::string> options_of(const CLI::App& app) {
  std::set<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
    for (const std::string& name : option->get_snames()) names.insert("-" + name);
  }
  return names;
}

void find_owners(const CLI::App& app, const std::string& option, std::vector<std::string>* owners) {
  if (options_of(app).contains(option)) owners->push_back(full_name(app));
  for (const CLI::App* command : commands_of(app)) find_owners(*command, option, owners);
}

// The command that the words led to.
const CLI::App& innermost(const CLI::App& root) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

Error usage(std::string message, std::string hint) {
  return {.kind = ErrorKind::kBadInput,
          .id = "usage",
          .message = std::move(message),
          .hint = std::move(hint)};
}

std::string help_hint(const CLI::App& app) {
  return fmt::format("`{} --help` shows what it takes", full_name(app));
}

std::vector<std::string_view> views(const auto& names) { return {names.begin(), names.end()}; }

Error unknown_option(const CLI::App& root, const CLI::App& app, const std::string& option) {
  std::set<std::string> known = options_of(app);
  known.merge(options_of(root));  // may follow the command
  // Any letter is near to any other.
  std::string hint = option.starts_with("--") ? did_you_mean(option, views(known)) : "";
  if (std::vector<std::string> owners; hint.empty()) {
    find_owners(root, option, &owners);
    if (!owners.empty()) hint = fmt::format("it is an option of {}", join_names(views(owners)));
  }
  if (hint.empty()) hint = help_hint(app);
  return usage(fmt::format("`{}` has no option `{}`", full_name(app), option), std::move(hint));
}

Error unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : commands_of(app)) known.push_back(command->get_name());
  std::string hint = did_you_mean(word, views(known));
  if (hint.empty()) hint = "one of " + join_names(views(known));
  return usage(fmt::format("`{}` has no command `{}`", full_name(app), word), std::move(hint));
}

}  // namespace

Error describe_misuse(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& app = innermost(root);
  const std::vector<std::string> left = root.remaining(true);
  // What else is wrong mostly follows from an unknown word: its value was taken for a SPEC. Only a
  // value that an option refused does not.
  const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const bool by_value =
      code == CLI::ExitCodes::ConversionError || code == CLI::ExitCodes::ValidationError;
  if (!by_value && !left.empty()) {
    const std::string word = left.front().substr(0, left.front().find('='));
    if (word.starts_with('-')) return unknown_option(root, app, word);
    if (!commands_of(app).empty()) return unknown_command(app, word);
    return usage(fmt::format("`{}` takes no `{}` here", full_name(app), word), help_hint(app));
  }
  return usage(error.what(), help_hint(app));
}

}  // namespace attune::cli
