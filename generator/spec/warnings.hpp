// What is well-formed in a spec and was probably not meant.
#pragma once

#include <string_view>
#include <vector>

#include "generator/spec/spec.hpp"

namespace attune {

// `yaml` and `file`: what parse_spec() read `spec` from. Each has an id, its place and a hint;
// docs/spec.md lists the ids. At most a few tens of milliseconds.
std::vector<Error> spec_warnings(const AttentionSpec& spec, std::string_view yaml,
                                 std::string_view file);

}  // namespace attune
