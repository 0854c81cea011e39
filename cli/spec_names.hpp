// A cache knows specs by their hash; people know them by name.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune::cli {

// Names of the library's specs by hash. Specs that mean the same kernel share a hash: the shortest
// name stands.
std::map<std::string, std::string> library_names();

// The same, with the names of specs that the user names on the command line, which stand before
// the library's. Fails where one cannot be read.
Result<std::map<std::string, std::string>> names_with(const std::vector<std::string>& own);

// The name, or the first eight digits of the hash when no library spec has it.
std::string name_of(const std::map<std::string, std::string>& names, const std::string& hash);

// What a label says of data, "t0=segments(mean=700)", with tensors' names in place of their slots.
std::string with_tensor_names(std::string_view label, const AttentionSpec& spec);

}  // namespace attune::cli
