#include "cli/command_line.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <sstream>
#include <system_error>
#include <type_traits>

namespace attune::cli {

namespace {

// A script's variable that holds nothing is no wish for the default.
std::string not_empty(const std::string& word) { return word.empty() ? "is empty" : ""; }

// The library takes 010 for 8, and of numbers without sign -1 and what does not fit.
template <typename Value>
std::string decimal(std::string& word) {
  std::conditional_t<std::is_integral_v<Value>, Value, std::uint64_t> number{};
  const char* end = word.data() + word.size();
  const auto [stop, problem] = std::from_chars(word.data(), end, number);
  if (problem == std::errc::result_out_of_range) return word + " is too large";
  if (problem != std::errc() || stop != end) return "`" + word + "` is not a whole number";
  word = std::to_string(number);
  return "";
}

}  // namespace

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : app_(std::make_shared<CLI::App>(description, program)) {}

CommandLine CommandLine::command(const std::string& name, const std::string& description) {
  return within(app_->add_subcommand(name, description));
}

void CommandLine::footer(const std::string& text) { app_->footer(text); }

void CommandLine::require_command() { app_->require_subcommand(1); }

void CommandLine::options_may_follow_commands() { app_->fallthrough(); }

void CommandLine::hide() { app_->group(""); }

void CommandLine::version(const std::string& text) { app_->set_version_flag("--version", text); }

void CommandLine::when_chosen(std::function<void()> action) { app_->callback(std::move(action)); }

void CommandLine::flag(const std::string& names, bool& value, const std::string& description) {
  app_->add_flag(names, value, description);
}

void CommandLine::exclude(const std::string& one, const std::string& other) {
  app_->get_option(one)->excludes(app_->get_option(other));
}

template <typename Value>
void CommandLine::option(const std::string& names, Value& value, const std::string& description,
                         const OptionRules& rules) {
  CLI::Option* option = app_->add_option(names, value, description)->required(rules.required);
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
    if (rules.exactly_one) option->expected(1);
    if (rules.commas) option->delimiter(',')->allow_extra_args(false);
  } else if constexpr (std::is_same_v<Value, std::string>) {
    option->check(not_empty);
  } else {
    option->transform(CLI::Validator(decimal<Value>, ""));
  }
  if (rules.range) option->check(CLI::Range(rules.range->least, rules.range->most));
  if (rules.show_default) option->capture_default_str();
}

template void CommandLine::option(const std::string&, std::string&, const std::string&,
                                  const OptionRules&);
template void CommandLine::option(const std::string&, std::vector<std::string>&, const std::string&,
                                  const OptionRules&);
template void CommandLine::option(const std::string&, int&, const std::string&, const OptionRules&);
template void CommandLine::option(const std::string&, std::int64_t&, const std::string&,
                                  const OptionRules&);
template void CommandLine::option(const std::string&, std::uint64_t&, const std::string&,
                                  const OptionRules&);
template void CommandLine::option(const std::string&, std::optional<std::uint64_t>&,
                                  const std::string&, const OptionRules&);

Reading CommandLine::read(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    return {};
  } catch (const CLI::ParseError& error) {
    const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
    if (code == CLI::ExitCodes::Success) {
      std::ostringstream answer;
      app_->exit(error, answer, answer);
      return {.outcome = Reading::Outcome::kAnswer, .text = answer.str()};
    }
    const bool by_value =
        code == CLI::ExitCodes::ConversionError || code == CLI::ExitCodes::ValidationError;
    return {.outcome = by_value ? Reading::Outcome::kBadValue : Reading::Outcome::kMisuse,
            .text = error.what(),
            .left_over = app_->remaining(true)};
  }
}

bool CommandLine::chosen() const { return app_->parsed(); }

CommandLine CommandLine::innermost() const {
  CLI::App* app = app_.get();
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return within(app);
}

std::string CommandLine::name() const { return app_->get_name(); }

std::string CommandLine::full_name() const {
  std::string name = app_->get_name();
  for (const CLI::App* app = app_->get_parent(); app != nullptr; app = app->get_parent()) {
    name = app->get_name() + " " + name;
  }
  return name;
}

std::vector<CommandLine> CommandLine::commands() const {
  std::vector<CommandLine> found;
  for (CLI::App* app :
       app_->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    found.push_back(within(app));
  }
  return found;
}

std::set<std::string> CommandLine::option_names() const {
  std::set<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
    for (const std::string& name : option->get_snames()) names.insert("-" + name);
  }
  return names;
}

}  // namespace attune::cli
