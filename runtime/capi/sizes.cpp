#include "runtime/capi/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "generator/spec/shape.hpp"

namespace attune {

Error bad_argument(std::string message, std::string hint) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "bad-argument",
               .message = std::move(message),
               .hint = std::move(hint)};
}

ProblemShape problem_shape(const att_shape& shape) {
  return {.batch = shape.batch,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .q_len = shape.q_len,
          .kv_len = shape.kv_len};
}

namespace {

bool is_in_range(const ShapeField& field, const ProblemShape& shape) {
  return shape.*field.member >= 1 && shape.*field.member <= field.largest;
}

// A chain of comparisons with constants, where a loop would go through the table at every look-up.
template <std::size_t... i>
bool are_in_range(const ProblemShape& shape, std::index_sequence<i...>) {
  return (is_in_range(kShapeFields[i], shape) && ...);
}

// Errors are made apart from the checks, which every look-up of a kernel goes through.
[[gnu::cold]] Error out_of_range(const ProblemShape& shape) {
  const ShapeField& field = *std::ranges::find_if_not(
      kShapeFields, [&](const ShapeField& field) { return is_in_range(field, shape); });
  const std::int64_t size = shape.*field.member;
  return bad_argument(
      fmt::format("shape.{} is {}, not in 1 to {}", field.name, size, field.largest),
      field.member == &ProblemShape::kv_len && size == 0
          ? "over no keys O is 0 and LSE is -inf; fill them in"
          : "");
}

[[gnu::cold]] Error no_multiple(const ProblemShape& shape) {
  return bad_argument(fmt::format("shape.heads = {} is no multiple of shape.kv_heads = {}",
                                  shape.heads, shape.kv_heads));
}

[[gnu::cold]] Error too_large(std::int64_t rows, std::int64_t row_bytes) {
  return bad_argument(
      fmt::format("the shape is too large for one launch: o has {} rows of {} bytes", rows,
                  row_bytes),
      "split the batch over several launches");
}

}  // namespace

Status check_shape(const att_shape& given, LaunchSizes* sizes) {
  ProblemShape& shape = sizes->shape;
  shape = problem_shape(given);
  sizes->is_empty = given.batch == 0 || given.q_len == 0;
  if (sizes->is_empty) {
    for (const auto member : {&ProblemShape::batch, &ProblemShape::q_len, &ProblemShape::kv_len}) {
      if (shape.*member == 0) shape.*member = 1;
    }
  }
  if (!are_in_range(shape, std::make_index_sequence<std::size(kShapeFields)>()))
    return out_of_range(shape);
  // Both fit into 32 bits, of which a division takes half the time.
  if (static_cast<std::uint32_t>(shape.heads) % static_cast<std::uint32_t>(shape.kv_heads) != 0)
    return no_multiple(shape);
  return ok_status();
}

Status check_sizes(const AttentionSpec& spec, const att_shape& given, LaunchSizes* sizes) {
  ATT_CHECK(check_shape(given, sizes));
  const ProblemShape& shape = sizes->shape;
  // At most 2^56.
  const std::int64_t rows = slice_count(spec, shape) * shape.heads * shape.q_len;
  const std::int64_t row_bytes = spec.head_dim_v * element_bytes(spec.dtype);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > kMaxTensorBytes)
    return too_large(rows, row_bytes);
  return ok_status();
}

}  // namespace attune
