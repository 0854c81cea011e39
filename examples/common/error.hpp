// What ends the program, with the exit code that says how.
#pragma once

#include <stdexcept>
#include <string>

namespace examples {

enum class Exit { kDone = 0, kFailed = 1, kBadInput = 2, kNothingToRunOn = 3 };

class Error : public std::runtime_error {
 public:
  Error(Exit exit, const std::string& message) : std::runtime_error(message), exit_(exit) {}
  Exit exit() const { return exit_; }

 private:
  Exit exit_;
};

}  // namespace examples
