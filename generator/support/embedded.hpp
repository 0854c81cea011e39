// Text files that travel inside the library: kernel templates, named masks, the spec library.
#pragma once

#include <span>
#include <string_view>

namespace attune {

struct EmbeddedFile {
  std::string_view path;  // relative to the repository
  std::string_view text;
};

std::span<const EmbeddedFile> embedded_templates();  // templates/**
std::span<const EmbeddedFile> embedded_specs();      // specs/**.yaml
std::span<const EmbeddedFile> embedded_masks();      // generator/expr/masks.att
std::span<const EmbeddedFile> embedded_schema();     // cache/schema.sql

}  // namespace attune
