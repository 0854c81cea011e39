// How every compiler reports that generated source did not compile.
#pragma once

#include <string>
#include <string_view>

#include "generator/support/error.hpp"

namespace attune {

struct CompileAttempt {
  std::string compiler;  // Compiler::identity()
  std::string command;   // what would reproduce it
  std::string_view source;
};

// kFailed, id "compile-failed"; the detail holds the command, the log and the numbered source.
Error compile_failure(const CompileAttempt& attempt, std::string_view reason, std::string_view log);

}  // namespace attune
