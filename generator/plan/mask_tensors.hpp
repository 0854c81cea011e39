// What a mask reads, drawn to see which tiles live.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "generator/expr/tensor_ranges.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

// By slot, of every tensor that the spec declares.
std::vector<Sample> samples_of(const AttentionSpec& spec);

// By slot, the values of the spec's scalars. Nothing where a launch gives one of them.
std::optional<std::vector<double>> constant_scalars(const AttentionSpec& spec);

// Where a mask is looked at.
struct MaskEntry {
  std::int32_t b = 0, h = 0, h_kv = 0;
};

// Tensors of a few batch entries, of one head where no other has another mask, as their samples
// say. Immutable, thread-safe.
class MaskTensors {
 public:
  // By slot; of which nothing is said, too. Null where they are too large to be drawn in passing.
  static std::shared_ptr<const MaskTensors> draw(const expr::Expr& mask,
                                                 std::span<const expr::TensorDecl> declared,
                                                 std::span<const Sample> samples,
                                                 const ProblemShape& shape);
  MaskTensors(const MaskTensors&) = delete;  // ranges view values
  MaskTensors& operator=(const MaskTensors&) = delete;

  // At most so many, of all batch entries and heads alike.
  std::vector<MaskEntry> entries(std::size_t most) const;
  // As TileBox::tensor_range. Valid as long as this is.
  std::function<expr::RealInterval(int, std::span<const expr::IntInterval>)> range() const {
    return [this](int slot, std::span<const expr::IntInterval> box) {
      return ranges_[static_cast<std::size_t>(slot)].range(box);
    };
  }

 private:
  MaskTensors(const expr::Expr& mask, std::span<const expr::TensorDecl> declared,
              std::span<const Sample> samples, const ProblemShape& drawn);

  const ProblemShape drawn_;
  std::vector<expr::TensorValues> values_;
  std::vector<expr::TensorRanges> ranges_;
};

}  // namespace attune
