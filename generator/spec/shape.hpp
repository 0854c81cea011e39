// The sizes of a problem, one by one: what the command's --shape and a spec's tune.shapes share.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "generator/spec/limits.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

struct ShapeField {
  std::string_view name;
  std::int64_t ProblemShape::* member;
  std::int64_t largest;
  bool required;  // batch is 1, kv_heads is heads, kv_len is q_len when left out
};
inline constexpr ShapeField kShapeFields[] = {
    {"batch", &ProblemShape::batch, kMaxBatch, false},
    {"heads", &ProblemShape::heads, kMaxHeads, true},
    {"kv_heads", &ProblemShape::kv_heads, kMaxHeads, false},
    {"q_len", &ProblemShape::q_len, expr::kMaxSequenceLength, true},
    {"kv_len", &ProblemShape::kv_len, expr::kMaxSequenceLength, false},
};

// What stands for a shape where lengths are asked for that only the device knows: of packed
// sequences, as many of one length.
ProblemShape typical_shape(const AttentionSpec& spec, const ProblemShape& shape);
// Slices of q and o along the batch stride, and of k and v unless these are paged: packed sequences
// share one.
inline std::int64_t slice_count(const AttentionSpec& spec, const ProblemShape& shape) {
  return is_packed(spec) ? 1 : shape.batch;
}
// Rows of k and v that all sequences together have room for, of a K/V head.
std::int64_t key_rows(const AttentionSpec& spec, const ProblemShape& shape);

// The size that a tensor's declared dim has in `shape`; an int holds it.
std::int64_t dim_size(const expr::DimSize& dim, const ProblemShape& shape);
// Canonical: "kv_len", "16", "2 * kv_len - 1", "(q_len + 127) // 128".
std::string dim_text(const expr::DimSize& dim);
// What a dim may be called, by expr::Dim.
std::span<const std::string_view> dim_names();

// What stands wrong in a shape's text, without a position.
struct ShapeProblem {
  std::string id;
  std::string message;
  std::string hint = {};
};
// One size read from text into `shape`.
std::optional<ShapeProblem> read_size(const ShapeField& field, std::string_view text,
                                      ProblemShape& shape);
// Fills in what was left out (0) and checks that the sizes fit together.
std::optional<ShapeProblem> complete_shape(ProblemShape& shape);

}  // namespace attune
