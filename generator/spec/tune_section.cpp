#include "generator/spec/tune_section.hpp"

#include <fmt/format.h>

#include <climits>
#include <utility>

#include "generator/spec/draw_lengths.hpp"
#include "generator/spec/limits.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

Result<ProblemShape> read_shape(const SpecReader& reader, const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMapping)
    return reader.wrong_type("shapes", node, "a list of mappings {heads, q_len, ...}");
  std::vector<KeyRule> rules;
  for (const ShapeField& field : kShapeFields) rules.push_back({field.name, field.required});
  ATT_CHECK(reader.check_keys(node, "the shape", rules));
  ProblemShape shape{0, 0, 0, 0, 0};
  for (const ShapeField& field : kShapeFields) {
    const YamlEntry* entry = node.find(field.name);
    if (!entry) continue;
    ATT_TRY(shape.*field.member, reader.integer(field.name, entry->value, 1, field.largest));
  }
  if (auto problem = complete_shape(shape)) {
    return reader.error(node, problem->id, std::move(problem->message), std::move(problem->hint));
  }
  return shape;
}

Status read_shapes(const SpecReader& reader, const YamlNode& shapes, AttentionSpec& spec) {
  if (shapes.kind != YamlNode::Kind::kSequence)
    return reader.wrong_type("shapes", shapes, "a list of mappings {heads, q_len, ...}");
  if (shapes.items.size() > kMaxTuneShapes) {
    return reader.error(
        shapes.items[kMaxTuneShapes], "spec-too-many",
        fmt::format("`shapes` has {} entries, more than {}", shapes.items.size(), kMaxTuneShapes));
  }
  for (const YamlNode& item : shapes.items) {
    ATT_TRY(const ProblemShape shape, read_shape(reader, item));
    spec.tune_shapes.push_back(shape);
  }
  return ok_status();
}

// A number that goes with pages.
Status read_of_pages(const SpecReader& reader, const AttentionSpec& spec, const YamlEntry* entry,
                     std::string_view key, int least, int most, int& number) {
  if (entry == nullptr) return ok_status();
  if (!is_paged(spec)) {
    return reader.error(entry->value, "spec-page-size",
                        fmt::format("layout `{}` has no pages", to_string(spec.layout)),
                        fmt::format("`{}` goes with `layout: paged`", key));
  }
  ATT_TRY(const std::int64_t given, reader.integer(key, entry->value, least, most));
  number = static_cast<int>(given);
  return ok_status();
}

// Of every shape that is tuned.
Status read_lengths(const SpecReader& reader, const YamlEntry* entry, AttentionSpec& spec) {
  if (!entry) return ok_status();
  const auto refused = [&](Error error) {
    return reader.error(entry->value, std::move(error.id), std::move(error.message),
                        std::move(error.hint));
  };
  ATT_TRY(const std::string_view text, reader.text("lengths", entry->value));
  auto parsed = parse_lengths(text);
  if (!parsed.ok()) return refused(std::move(parsed.error()));
  spec.lengths = *std::move(parsed);
  for (const ProblemShape& shape : spec.tune_shapes) {
    if (Status fits = check_lengths(spec, shape); !fits.ok()) return refused(fits.error());
  }
  return ok_status();
}

}  // namespace

Status read_tune_section(const SpecReader& reader, const YamlNode& node, AttentionSpec& spec) {
  if (node.kind != YamlNode::Kind::kMapping)
    return reader.wrong_type("tune", node, "a mapping {shapes}");
  constexpr KeyRule kRules[] = {{"shapes", true}, {"page_size"}, {"shared_prefix"}, {"lengths"}};
  ATT_CHECK(reader.check_keys(node, "`tune`", kRules));
  ATT_CHECK(read_of_pages(reader, spec, node.find("page_size"), "page_size", 1, kMaxPageSize,
                          spec.page_size));
  ATT_CHECK(read_of_pages(reader, spec, node.find("shared_prefix"), "shared_prefix", 0, INT_MAX,
                          spec.shared_prefix));
  ATT_CHECK(read_shapes(reader, node.find("shapes")->value, spec));
  return read_lengths(reader, node.find("lengths"), spec);
}

}  // namespace attune
