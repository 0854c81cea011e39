#include "runtime/device/cpu_ranges.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace attune {
namespace {

template <typename Stored, typename Pair>
void rows_of_ranges(const att::TensorArg& tensor, const RangeGeometry& geometry) {
  const auto* from = static_cast<const Stored*>(tensor.data);
  auto* to = static_cast<Pair*>(tensor.block_ranges);
  for (int row = 0; row < geometry.rows; ++row) {
    for (int first = 0; first < geometry.length; first += att::kRangeBlock) {
      const int count = std::min(att::kRangeBlock, geometry.length - first);
      Pair lowest = std::numeric_limits<Pair>::max();
      Pair highest = std::numeric_limits<Pair>::lowest();
      bool ordered = true;
      for (int i = 0; i < count; ++i) {
        const Pair value = static_cast<Pair>(from[first + i]);
        lowest = value < lowest ? value : lowest;
        highest = value > highest ? value : highest;
        ordered = ordered && value == value;
      }
      if (!ordered) {
        lowest = -std::numeric_limits<Pair>::infinity();
        highest = std::numeric_limits<Pair>::infinity();
      }
      *to++ = lowest;
      *to++ = highest;
    }
    from += geometry.length;
  }
}

}  // namespace

void compute_block_ranges(const att::TensorArg& tensor, expr::TensorType type,
                          const RangeGeometry& geometry) {
  switch (type) {
    case expr::TensorType::kInt32:
      return rows_of_ranges<std::int32_t, std::int32_t>(tensor, geometry);
    case expr::TensorType::kFloat32:
      return rows_of_ranges<float, float>(tensor, geometry);
    case expr::TensorType::kBool:
      return rows_of_ranges<std::uint8_t, std::int32_t>(tensor, geometry);
  }
}

}  // namespace attune
