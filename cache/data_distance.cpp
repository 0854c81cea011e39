#include "cache/data_distance.hpp"

#include <algorithm>
#include <cmath>

namespace attune::cache {
namespace {

// What is not known of a kind of data counts as much as half the live tiles do.
constexpr double kUnknown = 1;

double tile_distance(const MaskData& measured, const MaskData& asked) {
  constexpr double kLeast = 1e-4;  // where no tile lives, of which there is no logarithm
  if (asked.live < 0) return 0;
  if (measured.live < 0) return kUnknown;
  return std::abs(std::log2(std::max(measured.live, kLeast)) -
                  std::log2(std::max(asked.live, kLeast))) +
         std::abs(measured.full - asked.full);
}

}  // namespace

double length_distance(const LengthClass& measured, const LengthClass& asked) {
  constexpr double kPageWeight = 0.25;  // pages change how keys are copied, not how many
  if (!asked.is_known()) return 0;
  if (!measured.is_known()) return kUnknown;
  const auto apart = [](double a, double b) { return std::abs(std::log2(a) - std::log2(b)); };
  const auto rows = [](const LengthClass& one) { return double(std::max(one.page_size, 1)); };
  return apart(measured.longest, asked.longest) + apart(measured.filled, asked.filled) +
         kPageWeight * apart(rows(measured), rows(asked));
}

double data_distance(const MaskData& measured, const MaskData& asked) {
  if (!asked.label.empty() && measured.label == asked.label) return 0;
  return tile_distance(measured, asked) + length_distance(measured.lengths, asked.lengths);
}

}  // namespace attune::cache
