#include "generator/expr/masks.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "generator/support/embedded.hpp"

namespace attune::expr {

std::span<const Definition> mask_definitions() {
  static const std::vector<Definition> definitions = [] {
    const EmbeddedFile& file = embedded_masks().front();
    SourceOrigin origin;
    origin.file = file.path;
    auto parsed = parse_definitions(file.text, origin);
    if (!parsed.ok()) {
      // The file is part of this program: a mistake in it is a bug that no caller can handle.
      std::fputs(render(parsed.error()).c_str(), stderr);
      std::abort();
    }
    return std::move(parsed).value();
  }();
  return definitions;
}

}  // namespace attune::expr
