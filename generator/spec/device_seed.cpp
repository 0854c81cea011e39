#include "generator/spec/device_seed.hpp"

#include <fmt/format.h>

#include "generator/spec/spec.hpp"
#include "generator/spec/yaml_tree.hpp"

namespace attune {

Result<std::string> with_device_seed(std::string_view yaml) {
  yaml = without_byte_order_mark(yaml);
  ATT_TRY(const AttentionSpec spec, parse_spec(yaml, ""));
  std::string text(yaml);
  if (spec.seed_on_device) return text;
  if (!has_dropout(spec)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "spec-dropout",
                 .message = fmt::format("the spec `{}` has no dropout", spec.name)};
  }
  ATT_TRY(const YamlNode root, parse_yaml({.text = yaml, .file = ""}));
  const YamlNode& dropout = root.find("dropout")->value;
  // A number or a word as it stands in the file; or a mapping whose seed is the launch's, which may
  // be in quotes.
  const bool is_scalar = dropout.kind == YamlNode::Kind::kScalar;
  const YamlNode& replaced = is_scalar ? dropout : dropout.find("seed")->value;
  text.replace(replaced.offset + (replaced.plain ? 0 : 1), replaced.text.size(),
               is_scalar ? fmt::format("{{p: {}, seed: device}}", replaced.text) : "device");
  return text;
}

}  // namespace attune
