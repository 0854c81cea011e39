#include "runtime/capi/sizes.hpp"

#include <fmt/format.h>

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

Result<LaunchSizes> checked_shape(const att_shape& shape) {
  LaunchSizes sizes{.shape = problem_shape(shape),
                    .is_empty = shape.batch == 0 || shape.q_len == 0};
  if (sizes.is_empty) {
    for (const auto member : {&ProblemShape::batch, &ProblemShape::q_len, &ProblemShape::kv_len}) {
      if (sizes.shape.*member == 0) sizes.shape.*member = 1;
    }
  }
  for (const ShapeField& field : shape_fields()) {
    const std::int64_t size = sizes.shape.*field.member;
    if (size < 1 || size > field.largest) {
      return bad_argument(
          fmt::format("shape.{} is {}, not in 1 to {}", field.name, size, field.largest),
          field.member == &ProblemShape::kv_len && size == 0
              ? "over no keys O is 0 and LSE is -inf; fill them in"
              : "");
    }
  }
  // Both fit into 32 bits, of which a division takes half the time.
  if (static_cast<std::uint32_t>(sizes.shape.heads) %
          static_cast<std::uint32_t>(sizes.shape.kv_heads) !=
      0) {
    return bad_argument(fmt::format("shape.heads = {} is no multiple of shape.kv_heads = {}",
                                    shape.heads, shape.kv_heads));
  }
  return sizes;
}

Result<LaunchSizes> checked_sizes(const AttentionSpec& spec, const att_shape& given) {
  ATT_TRY(const LaunchSizes sizes, checked_shape(given));
  const ProblemShape& shape = sizes.shape;
  // At most 2^56.
  const std::int64_t rows = slice_count(spec, shape) * shape.heads * shape.q_len;
  const std::int64_t row_bytes = spec.head_dim_v * element_bytes(spec.dtype);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > kMaxTensorBytes) {
    return bad_argument(
        fmt::format("the shape is too large for one launch: o has {} rows of {} bytes", rows,
                    row_bytes),
        "split the batch over several launches");
  }
  return sizes;
}

}  // namespace attune
