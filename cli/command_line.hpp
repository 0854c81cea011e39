// The words after `attune`: commands, options and flags, and what came of reading them. A library
// that is dear to compile does the work; its headers stay in one source file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace attune::cli {

// What an option demands, beside being of its value's type.
struct OptionRules {
  struct Range {
    std::int64_t least = 0;
    std::int64_t most = 0;
  };
  bool required = false;
  bool exactly_one = false;    // of a list: it takes one value
  bool commas = false;         // of a list: one word, its values between commas
  bool show_default = false;   // in --help
  std::optional<Range> range;  // of a number
};

// What came of reading the words.
struct Reading {
  enum class Outcome {
    kCommand,   // a command was asked for
    kAnswer,    // --help or --version was: `text` is the answer
    kBadValue,  // an option refused its value: `text` says why
    kMisuse,    // anything else was wrong: `text` says what
  };
  Outcome outcome = Outcome::kCommand;
  std::string text;
  std::vector<std::string> left_over;  // the words that nothing took
};

// A command, of which the outermost is the program. Copies are the same command. A variable that an
// option or a flag writes to must live until read() ends.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& description);

  // Settings that a command takes over from the one that it is added to, as they are then: footer,
  // require_command and options_may_follow_commands.
  CommandLine command(const std::string& name, const std::string& description);
  void footer(const std::string& text);  // the end of its --help
  void require_command();                // exactly one of its own
  void options_may_follow_commands();    // its options may stand behind those of its commands
  void hide();                           // from --help and commands()
  void version(const std::string& text);
  // Called when the command was asked for and all is well.
  void when_chosen(std::function<void()> action);

  // `names` as in "-o,--output"; a name without dashes takes a word by its place.
  void flag(const std::string& names, bool& value, const std::string& description);
  // `one` and `other`, which are names of flags with their dashes, do not go together.
  void exclude(const std::string& one, const std::string& other);
  // Value: std::string, a vector of them, int, std::int64_t, std::uint64_t, or optional of the
  // last.
  template <typename Value>
  void option(const std::string& names, Value& value, const std::string& description,
              const OptionRules& rules = {});

  // Of the outermost, once.
  Reading read(int argc, char** argv);

  // After read(): the user asked for this command.
  bool chosen() const;
  // After read(): the command that the words led to.
  CommandLine innermost() const;
  std::string name() const;
  std::string full_name() const;               // "attune cache ls"
  std::vector<CommandLine> commands() const;   // its own, without hidden ones
  std::set<std::string> option_names() const;  // with their dashes

 private:
  explicit CommandLine(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}
  // A command of the program that keeps this one alive.
  CommandLine within(CLI::App* app) const { return CommandLine({app_, app}); }

  std::shared_ptr<CLI::App> app_;  // owns the program, whichever command it points to
};

}  // namespace attune::cli
