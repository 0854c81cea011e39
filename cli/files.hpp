// Files that a command writes for its user.
#pragma once

#include <string>
#include <string_view>

#include "generator/support/result.hpp"

namespace attune::cli {

// Replaces `path` by `bytes`, whole or not at all: written beside it and renamed.
Status write_file(const std::string& path, std::string_view bytes);

}  // namespace attune::cli
