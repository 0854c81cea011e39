// Random problems as long as launches may be, and tiles in them.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>

#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {

// Tiles of problems up to 2^28 long, with scalars and tensors at the ends of int32.
class FarDraw {
 public:
  explicit FarDraw(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  Tape tape(std::size_t size) {
    Tape tape;
    for (std::size_t i = 0; i < size; ++i) tape.push_back(static_cast<std::uint32_t>(random_()));
    return tape;
  }
  // Any size is as likely as another; now and then a power of two or next to one.
  int length() {
    const auto bits = below(29);
    const std::int64_t power = std::int64_t{1} << bits;
    const std::int64_t found =
        below(3) == 0 ? power + static_cast<std::int64_t>(below(3)) - 1
                      : power + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(power)));
    return static_cast<int>(std::clamp<std::int64_t>(found, 1, kLongest));
  }
  // [first, end) within `length`, at most `most` long; at either end, or anywhere.
  void range(int length, int most, int& first, int& end) {
    const int size =
        static_cast<int>(1 + below(static_cast<std::uint64_t>(std::min(length, most))));
    const auto last = static_cast<std::uint64_t>(length - size);
    const auto where = below(4);
    first = static_cast<int>(where == 0 ? 0 : where == 1 ? last : below(last + 1));
    end = first + size;
  }
  World world() {
    World world = random_world(tape(60), 24);
    world.q_len = length();
    world.kv_len = below(3) == 0 ? world.q_len : length();
    constexpr double kEnds[] = {2147483647, -2147483648.0, 2147483646, -2147483647, 1 << 28, -1, 0};
    for (const std::size_t slot : {0, 1}) {
      if (below(3) != 0) continue;
      for (double& value : world.tensors[slot].values)
        if (below(3) == 0) value = kEnds[below(std::size(kEnds))];
    }
    if (below(2) == 0) world.scalars[0] = kEnds[below(std::size(kEnds))];
    if (below(3) == 0) world.scalars[0] = static_cast<double>(length());
    return world;
  }

 private:
  static constexpr int kLongest = 1 << 28;

  std::mt19937_64 random_;
};

}  // namespace attune::expr
