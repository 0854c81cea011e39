// What to say to a command line that is not understood.
#pragma once

#include "generator/support/error.hpp"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace attune::cli {

// "usage", after `root` failed to parse: names the first word that is neither command nor option
// and what was probably meant; else what `error` says.
Error describe_misuse(const CLI::App& root, const CLI::ParseError& error);

}  // namespace attune::cli
