// Templates and their includes -> one text.
#pragma once

#include <string>
#include <string_view>

#include "generator/support/result.hpp"

namespace attune {

// The template at `path` ("templates/kernels/sm80_forward.cuh") with every `#include
// "templates/..."` replaced by that file's text at its first occurrence, `head` in place of
// templates/kernels/head.cuh (and of backward_head.cuh and append_head.cuh) and no `#pragma once`.
// Each file starts with a line that names it. Fails with id "emit-template" when a template is
// missing or includes anything else. Thread-safe.
Result<std::string> flatten_template(std::string_view path, std::string_view head);

}  // namespace attune
