#include "generator/support/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace attune {
namespace {

// Longer names are never typed by mistake for one of ours; the bound keeps hostile input cheap.
constexpr std::size_t kMaxLength = 64;

// What PyTorch, NumPy and C call what a spec calls otherwise.
struct OtherName {
  std::string_view name, ours;
};
constexpr OtherName kOtherNames[] = {
    {"bfloat16", "bf16"},   {"float16", "fp16"},        {"half", "fp16"},
    {"float32", "fp32"},    {"float", "fp32"},          {"float", "float32"},
    {"fp32", "float32"},    {"f32", "float32"},         {"float8_e4m3fn", "fp8_e4m3"},
    {"float8", "fp8_e4m3"}, {"fp8", "fp8_e4m3"},        {"int", "int32"},
    {"long", "int32"},      {"int64", "int32"},         {"boolean", "bool"},
    {"uint8", "bool"},      {"scale", "softmax_scale"}, {"sm_scale", "softmax_scale"},
    {"mask_mod", "mask"},   {"attn_mask", "mask"},      {"score_mod", "score"},
    {"shape", "dims"},      {"varlen", "thd"},          {"packed", "thd"},
};

// Damerau-Levenshtein distance, restricted to one swap a pair (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cells((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& {
    return cells[i * width + j];
  };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = at(i - 1, j - 1) + (a[i - 1] != b[j - 1] ? 1 : 0);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return cells.back();
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  if (name.empty() || name.size() > kMaxLength) return best;
  for (const OtherName& other : kOtherNames) {
    const auto ours = std::ranges::find(candidates, other.ours);
    if (other.name == name && ours != candidates.end()) return *ours;
  }
  // One mistake in three characters is a slip; more is another word.
  std::size_t limit = (name.size() + 2) / 3;
  for (const std::string_view candidate : candidates) {
    if (candidate.size() > kMaxLength) continue;
    const std::size_t distance = edit_distance(name, candidate);
    if (distance > limit || distance >= candidate.size()) continue;
    // Of equals the first wins, but `sm_90` means `sm_90a` rather than `sm_80`.
    const bool completes = candidate.starts_with(name) && !best.starts_with(name);
    if (best.empty() || distance < limit || completes) {
      best = candidate;
      limit = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view nearest = nearest_name(name, candidates);
  return nearest.empty() ? std::string() : fmt::format("did you mean `{}`?", nearest);
}

std::string join_names(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += fmt::format("`{}`", names[i]);
  }
  return text;
}

}  // namespace attune
