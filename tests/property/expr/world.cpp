#include "tests/property/expr/world.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attune::expr {

Point World::point(int q_idx, int kv_idx, double score) const {
  Point p;
  p.score = score;
  p.b = b;
  p.h = h;
  p.h_kv = h / (heads / kv_heads);
  p.q_idx = q_idx;
  p.kv_idx = kv_idx;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.scalars = scalars;
  p.tensors = tensors;
  return p;
}

TileBox World::box(int q0, int q1, int k0, int k1) const {
  TileBox box;
  box.q0 = q0;
  box.q1 = q1;
  box.k0 = k0;
  box.k1 = k1;
  box.b = b;
  box.h = h;
  box.h_kv = h / (heads / kv_heads);
  box.q_len = q_len;
  box.kv_len = kv_len;
  box.scalars = scalars;
  box.tensor_range = [this](int slot, std::span<const IntInterval> indices) {
    const TensorValues& tensor = tensors[static_cast<std::size_t>(slot)];
    std::vector<std::int64_t> offsets = {0};
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t last = tensor.sizes[i] - 1;
      std::vector<std::int64_t> next;
      for (const std::int64_t offset : offsets)
        for (std::int64_t at = std::clamp<std::int64_t>(indices[i].lo, 0, last);
             at <= std::clamp<std::int64_t>(indices[i].hi, 0, last); ++at)
          next.push_back(offset * tensor.sizes[i] + at);
      offsets = std::move(next);
    }
    RealInterval range = {std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity()};
    for (const std::int64_t offset : offsets) {
      const double value = tensor.values[static_cast<std::size_t>(offset)];
      if (std::isnan(value)) return RealInterval{value, value};
      range = {std::min(range.lo, value), std::max(range.hi, value)};
    }
    return range;
  };
  return box;
}

World random_world(const std::vector<std::uint32_t>& tape, int longest) {
  std::size_t at = 0;
  // Past the tape the numbers go on, so that long tensors are not all zero.
  std::uint32_t state = 12345;
  const auto draw = [&](std::uint32_t below) {
    state = state * 1664525 + 1013904223 + (at < tape.size() ? tape[at] : 0);
    ++at;
    return (state >> 8) % below;
  };
  World w;
  w.q_len = 1 + static_cast<int>(draw(static_cast<std::uint32_t>(longest)));
  w.kv_len = 1 + static_cast<int>(draw(static_cast<std::uint32_t>(longest)));
  w.b = static_cast<int>(draw(2));
  w.h = static_cast<int>(draw(4));
  const double extremes[] = {2147483647, -2147483648.0, 0, 1};
  w.scalars = {draw(4) == 0 ? extremes[draw(4)] : static_cast<double>(draw(60)) - 10,
               static_cast<double>(draw(400)) / 32 - 4, static_cast<double>(draw(2))};
  const auto filled = [&](std::vector<std::int64_t> sizes, auto make) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    TensorValues tensor = {std::move(sizes), {}};
    for (std::int64_t i = 0; i < count; ++i) tensor.values.push_back(make());
    return tensor;
  };
  double document = 0;
  w.tensors.push_back(filled({w.batch, w.kv_len}, [&] { return document += draw(16) == 0; }));
  w.tensors.push_back(filled({w.batch}, [&] { return static_cast<double>(draw(50)); }));
  const bool with_nan = draw(4) == 0;
  w.tensors.push_back(filled({w.kv_len}, [&] {
    if (with_nan && draw(30) == 0) return std::nan("");
    if (draw(100) == 0) return std::numeric_limits<double>::infinity();
    return static_cast<double>(draw(1000)) / 64 - 8;
  }));
  w.tensors.push_back(filled({8, 8}, [&] { return static_cast<double>(draw(3) == 0); }));
  w.tensors.push_back(
      filled({w.heads, w.q_len}, [&] { return static_cast<double>(draw(8) != 0); }));
  return w;
}

}  // namespace attune::expr
