#include "generator/spec/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#include "generator/spec/number.hpp"
#include "generator/spec/yaml_tree.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

// By expr::Dim.
constexpr std::string_view kDimNames[] = {"batch", "heads", "kv_heads", "q_len", "kv_len"};

// The longest text that a shape can have, generously; the rest is not worth reading.
constexpr std::size_t kMaxShapeText = 256;

Error at(std::string_view text, std::size_t begin, std::size_t length, ShapeProblem problem) {
  return {.kind = ErrorKind::kBadInput,
          .id = std::move(problem.id),
          .message = std::move(problem.message),
          .span = {.line = 1,
                   .column = static_cast<int>(begin) + 1,
                   .length = static_cast<int>(std::max<std::size_t>(length, 1))},
          .source_line = std::string(text),
          .hint = std::move(problem.hint)};
}

}  // namespace

ProblemShape typical_shape(const AttentionSpec& spec, const ProblemShape& shape) {
  if (!is_packed(spec)) return shape;
  ProblemShape typical = shape;
  typical.q_len = (shape.q_len + shape.batch - 1) / shape.batch;
  if (!is_paged(spec)) typical.kv_len = (shape.kv_len + shape.batch - 1) / shape.batch;
  return typical;
}

std::int64_t key_rows(const AttentionSpec& spec, const ProblemShape& shape) {
  return (is_paged(spec) ? shape.batch : slice_count(spec, shape)) * shape.kv_len;
}

std::span<const std::string_view> dim_names() { return kDimNames; }

std::int64_t dim_size(const expr::DimSize& dim, const ProblemShape& shape) {
  switch (dim.dim) {
    case expr::Dim::kBatch:
      return dim.elements(shape.batch);
    case expr::Dim::kHeads:
      return dim.elements(shape.heads);
    case expr::Dim::kKvHeads:
      return dim.elements(shape.kv_heads);
    case expr::Dim::kQLen:
      return dim.elements(shape.q_len);
    case expr::Dim::kKvLen:
      return dim.elements(shape.kv_len);
    case expr::Dim::kNumber:
      break;
  }
  return dim.number;
}

std::string dim_text(const expr::DimSize& size) {
  if (size.dim == expr::Dim::kNumber) return fmt::format("{}", size.number);
  std::string text(dim_names()[static_cast<std::size_t>(size.dim)]);
  if (size.factor != 1) text = fmt::format("{} * {}", size.factor, text);
  if (size.offset != 0)
    text += fmt::format(" {} {}", size.offset < 0 ? '-' : '+', std::abs(size.offset));
  if (size.divisor == 1) return text;
  if (size.offset != 0) text = fmt::format("({})", text);
  return fmt::format("{} // {}", text, size.divisor);
}

std::optional<ShapeProblem> read_size(const ShapeField& field, std::string_view text,
                                      ProblemShape& shape) {
  const ParsedNumber number = parse_number(text);
  if (number.status == ParsedNumber::Status::kOverflow ||
      (number.is_number() &&
       !(number.real >= 1 && number.real <= static_cast<double>(field.largest)))) {
    return ShapeProblem{"spec-out-of-range", fmt::format("`{}` is {}, not in 1 to {}", field.name,
                                                         quoted(text), field.largest)};
  }
  if (number.status != ParsedNumber::Status::kInteger) {
    return ShapeProblem{"spec-number",
                        fmt::format("`{}` is {}, not a whole number", field.name, quoted(text))};
  }
  shape.*field.member = number.integer;
  return std::nullopt;
}

std::optional<ShapeProblem> complete_shape(ProblemShape& shape) {
  for (const ShapeField& field : kShapeFields) {
    if (field.required && shape.*field.member == 0) {
      return ShapeProblem{"spec-missing-key", fmt::format("the shape lacks `{}`", field.name)};
    }
  }
  if (shape.batch == 0) shape.batch = 1;
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.kv_len == 0) shape.kv_len = shape.q_len;
  if (shape.heads % shape.kv_heads != 0) {
    return ShapeProblem{
        "spec-shape-heads",
        fmt::format("{} heads are not a multiple of {} kv_heads", shape.heads, shape.kv_heads),
        "each key/value head serves the same number of query heads"};
  }
  return std::nullopt;
}

std::string to_string(const ProblemShape& shape) {
  return fmt::format("batch={},heads={},kv_heads={},q_len={},kv_len={}", shape.batch, shape.heads,
                     shape.kv_heads, shape.q_len, shape.kv_len);
}

Result<ProblemShape> parse_shape(std::string_view text) {
  if (text.size() > kMaxShapeText) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "spec-too-large",
                 .message = "the shape's text is too long"};
  }
  ProblemShape shape{0, 0, 0, 0, 0};
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t equal = part.find('=');
    if (equal == std::string_view::npos) {
      return at(text, begin, part.size(),
                {"spec-shape", fmt::format("expected name=size, found {}", quoted(part)),
                 "for example batch=2,heads=32,kv_heads=8,q_len=8192,kv_len=8192"});
    }
    const std::string_view key = part.substr(0, equal);
    const auto field = std::ranges::find(kShapeFields, key, &ShapeField::name);
    if (field == std::end(kShapeFields)) {
      std::vector<std::string_view> names;
      for (const ShapeField& known : kShapeFields) names.push_back(known.name);
      std::string hint = did_you_mean(key, names);
      if (hint.empty()) hint = "sizes are " + join_names(names);
      return at(text, begin, key.size(),
                {"spec-unknown-key", fmt::format("unknown size {}", quoted(key)), std::move(hint)});
    }
    if (shape.*field->member != 0) {
      return at(text, begin, key.size(),
                {"spec-duplicate-key", fmt::format("`{}` is given twice", key)});
    }
    const std::string_view size = part.substr(equal + 1);
    if (auto problem = read_size(*field, size, shape)) {
      return at(text, begin + equal + 1, size.size(), std::move(*problem));
    }
    begin = end + 1;
  }
  if (auto problem = complete_shape(shape)) return at(text, 0, text.size(), std::move(*problem));
  return shape;
}

}  // namespace attune
