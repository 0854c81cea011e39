// The scalars and tensors that a spec declares.
#pragma once

#include "generator/expr/ast.hpp"
#include "generator/spec/spec_reader.hpp"

namespace attune {

// Reads both sections; either may be null. Slots do not depend on the order in the file:
// launch-time scalars come first, then constants, each by name; tensors go by name.
Result<expr::Environment> read_environment(const SpecReader& reader, const YamlNode* scalars,
                                           const YamlNode* tensors);

}  // namespace attune
