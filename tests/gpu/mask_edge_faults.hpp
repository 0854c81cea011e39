// Faults planted at the edges of a sliding window, where elements of a tile that the mask crosses
// are dead or live: of 64 rows of head 1, in front of the first live key and behind the last one.
#pragma once

#include <fmt/format.h>

#include <vector>

#include "generator/plan/plan.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

inline constexpr int kEdgeWindow = 200, kEdgeRow = 512;

inline std::vector<Fault> forward_edge_faults() {
  const std::string in_rows = fmt::format("(c.h == 1 && q >= {0} && q < {0} + 64)", kEdgeRow);
  const auto moved = [&](const char* begin, const char* end) {
    return std::vector<Edit>{
        {"return {keys.begin - k0, keys.end - k0, 0, 0};",
         fmt::format(
             "const int moved = {} ? 1 : 0;\n    return {{keys.begin - k0 {}, keys.end - k0 "
             "{}, 0, 0}};",
             in_rows, begin, end)}};
  };
  return {{"the key before the first live one counts", moved("- moved", "")},
          {"the first live key does not count", moved("+ moved", "")},
          {"the key behind the last live one counts", moved("", "+ moved")},
          {"the last live key does not count", moved("", "- moved")}};
}

inline std::vector<Fault> backward_edge_faults() {
  const auto turned = [&](int back) {
    return std::vector<Edit>{
        {"return (k < c.kv_len) & mask(c, q, k);",
         fmt::format("const bool turned = c.h == 1 && q >= {0} && q < {0} + 64 && k == q - ({1});\n"
                     "  return (k < c.kv_len) & (mask(c, q, k) ^ turned);",
                     kEdgeRow, back)}};
  };
  return {{"the key before the first live one counts", turned(kEdgeWindow)},
          {"the first live key does not count", turned(kEdgeWindow - 1)},
          {"the key behind the last live one counts", turned(-1)},
          {"the last live key does not count", turned(0)}};
}

inline std::vector<Fault> edge_faults(Pass pass) {
  return pass == Pass::kForward ? forward_edge_faults() : backward_edge_faults();
}

// After the name.
struct EdgeSpec {
  const char* name;
  const char* yaml;
};
inline void PrintTo(const EdgeSpec& spec, std::ostream* out) { *out << spec.name; }
inline constexpr EdgeSpec kEdgeSpecs[] = {
    {"Plain", "dtype: bf16\nhead_dim: 64\n"},
    {"Softcap", "dtype: bf16\nhead_dim: 128\nscore: 30 * tanh(score / 30)\n"},
    {"Line", "dtype: fp16\nhead_dim: 64\nscore: score + 0.01 * (kv_idx - q_pos)\n"},
    {"Function", "dtype: bf16\nhead_dim: 64\nscore: score * abs(score) / 8\n"},
    {"Learned",
     "dtype: bf16\nhead_dim: 64\nscore: 20 * tanh((score + bias[h]) / 20)\n"
     "tensors: {bias: {dtype: float32, dims: [heads], grad: true}}\n"},
    {"Strict", "dtype: bf16\nhead_dim: 128\naccuracy: strict\n"},
    {"Fp32", "dtype: fp32\nhead_dim: 64\n"},
    {"Tf32", "dtype: fp32\nhead_dim: 128\nprecision: tf32\n"},
};
inline std::string yaml_of(const EdgeSpec& spec) {
  return fmt::format("name: t\n{}mask: sliding_window({})\n", spec.yaml, kEdgeWindow);
}

}  // namespace attune::planted
