// SPEC on the command line: a file, a name of the library, or "-".
#pragma once

#include <string>
#include <vector>

#include "generator/spec/spec.hpp"

namespace attune::cli {

struct LoadedSpec {
  AttentionSpec spec;
  std::string source;  // what was named, as errors and reproducing commands show it
  double parse_seconds = 0;
  std::string text;
  std::vector<Error> warnings = {};  // what was probably not meant; of spec_warnings()
};

// A file wins over a library name. "full" and "specs/full.yaml" both name the library's.
Result<LoadedSpec> read_and_parse(const std::string& name);
// The same; its warnings go to stderr.
Result<LoadedSpec> load_spec(const std::string& name);

}  // namespace attune::cli
