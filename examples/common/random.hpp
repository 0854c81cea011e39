// Random numbers that are the same with every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace examples {

// SplitMix64: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // 0 to below `count`; `count` is small against 2^64, so that no number is seen to be preferred.
  std::uint64_t below(std::uint64_t count) { return next() % count; }
  // Above 0, at most 1.
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }
  // Of mean 0 and deviation 1 (Box and Muller).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace examples
