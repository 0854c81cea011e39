// What reading every part of a spec needs: errors at nodes, typed values out of nodes, checked
// keys.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/spec/yaml_tree.hpp"

namespace attune {

struct KeyRule {
  std::string_view name;
  bool required = false;
};

class SpecReader {
 public:
  explicit SpecReader(const SpecSource& source) : source_(source) {}
  const SpecSource& source() const { return source_; }

  Error error(const YamlNode& node, std::string id, std::string message,
              std::string hint = {}) const {
    return source_.error(std::move(id), node.span, std::move(message), std::move(hint));
  }
  // "`key` must be EXPECTED, found ..."
  Error wrong_type(std::string_view key, const YamlNode& node, std::string_view expected) const;

  // Every key known, every required one there, no value empty. `what` names the mapping: "the
  // spec".
  Status check_keys(const YamlNode& mapping, std::string_view what,
                    std::span<const KeyRule> rules) const;

  // A name of lower-case letters, digits and underscores.
  Status check_name(std::string_view what, const YamlNode& node) const;
  // The scalar's text.
  Result<std::string_view> text(std::string_view key, const YamlNode& node) const;
  // The position of the scalar's text in `words`.
  Result<std::size_t> choice(std::string_view key, const YamlNode& node,
                             std::span<const std::string_view> words) const;
  Result<std::int64_t> integer(std::string_view key, const YamlNode& node, std::int64_t least,
                               std::int64_t largest) const;
  // Finite, and as fp32 neither infinite nor rounded away to zero.
  Result<double> real(std::string_view key, const YamlNode& node) const;
  Result<bool> boolean(std::string_view key, const YamlNode& node) const;
  // A sequence's items, or a lone scalar as a sequence of one. Not empty.
  Result<std::span<const YamlNode>> list(std::string_view key, const YamlNode& node) const;

 private:
  const SpecSource& source_;
};

}  // namespace attune
