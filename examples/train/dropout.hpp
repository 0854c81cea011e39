// Which elements of the softmax Attune drops: a pure function of seed, offset and place, the same
// on every device and for every kernel (docs/runtime.md, "What is right").
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace train {

// Philox4x32 with seven rounds: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

class Dropout {
 public:
  // Probabilities are steps of 1/256.
  Dropout(double probability, std::uint64_t seed)
      : drop_below_(static_cast<std::uint32_t>(std::lround(256 * probability))), seed_(seed) {}

  // What keeps the mean of an element that is dropped at times.
  double keep_scale() const { return 256.0 / (256.0 - drop_below_); }

  // `head` counts on from batch to batch: b * heads + h. A byte of a block of 16 queries and 32
  // keys decides about each of its elements: four bytes of each of 8 x 4 draws' words.
  bool drops(std::uint64_t offset, std::uint32_t head, std::uint32_t q, std::uint32_t k) const {
    const std::array<std::uint32_t, 2> key = {
        static_cast<std::uint32_t>(seed_),
        static_cast<std::uint32_t>(seed_ >> 32) + static_cast<std::uint32_t>(offset >> 32)};
    const std::array<std::uint32_t, 4> counter = {k / 32 * 4 + k % 8 / 2, q / 16 * 8 + q % 8, head,
                                                  static_cast<std::uint32_t>(offset)};
    const std::uint32_t byte = q % 16 / 8 * 8 + k % 32 / 8 * 2 + k % 2;
    return (philox(counter, key)[byte / 4] >> 8 * (byte % 4) & 0xFF) < drop_below_;
  }

 private:
  std::uint32_t drop_below_;
  std::uint64_t seed_;
};

}  // namespace train
