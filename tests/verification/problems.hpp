// The problems in which faults are planted, and those in which there are none.
#pragma once

#include <cstdint>
#include <ostream>
#include <random>
#include <string>

#include "generator/spec/spec.hpp"

namespace attune::planted {

// One row of the table: a mask at a length.
struct Problem {
  std::string mask, length;  // what the table calls them
  std::string yaml;          // of the spec, after dtype and head dim
  ProblemShape shape;
};
inline void PrintTo(const Problem& p, std::ostream* out) { *out << p.mask << ' ' << p.length; }

// Masks at 512, at 8192 with so many heads, and at a long kv_len. A window drops out too.
inline std::vector<Problem> problems(std::int64_t heads_of_8192, std::int64_t longest) {
  const auto window = [](int keys) {
    return "mask: sliding_window(" + std::to_string(keys) + ")\ndropout: 0.1\n";
  };
  const std::string document =
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
      "mask: q_pos >= kv_idx and doc[b, q_pos] == doc[b, kv_idx]\n";
  const ProblemShape at_512{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 512, .kv_len = 512};
  const ProblemShape at_8192{
      .batch = 1, .heads = heads_of_8192, .kv_heads = 2, .q_len = 8192, .kv_len = 8192};
  const ProblemShape at_end{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 512, .kv_len = longest};
  const auto decode = [](std::int64_t kv_len) {
    return ProblemShape{.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = kv_len};
  };
  std::vector<Problem> made;
  const auto add = [&](const std::string& mask, const std::string& yaml) {
    made.push_back({mask, "512", yaml, at_512});
    made.push_back({mask, "8192", yaml, at_8192});
    made.push_back({mask, "long", yaml, at_end});
  };
  add("full", "");
  add("causal", "mask: causal\n");
  made.push_back({"window", "512", window(200), at_512});
  made.push_back({"window", "8192", window(1000), at_8192});
  made.push_back({"window", "long", window(5000), at_end});
  add("document", document);
  made.push_back({"decode", "512", "dropout: 0.1\n", decode(512)});
  made.push_back({"decode", "8192", "dropout: 0.1\n", decode(8192)});
  made.push_back({"decode", "long", "dropout: 0.1\n", decode(2 * longest)});
  return made;
}

// Where in a problem the faults are.
struct Site {
  int key = 0;       // of the tile that suffers: in the middle, or before `row` so that it sees it
  int edge_key = 0;  // one more than row + 15 of a causal mask has
  int row = 0;       // the first of a block of 16, or 64, of head 1
  bool has_mask = false, mask_is_range = false, has_dropout = false, one_query = false;
};

inline Site site_of(const Problem& problem, const AttentionSpec& spec) {
  const ProblemShape& s = problem.shape;
  const int past = static_cast<int>(s.kv_len - s.q_len);
  const int row = static_cast<int>(s.q_len / 2 / 64 * 64);
  const bool sees_few = problem.mask == "window" || problem.mask == "document";
  return {.key = sees_few ? past + row - static_cast<int>(s.kv_len / 64) - 20
                          : static_cast<int>(s.kv_len / 2),
          .edge_key = past + row + 16,
          .row = row,
          .has_mask = spec.mask != nullptr,
          .mask_is_range = problem.mask == "causal" || problem.mask == "window",
          .has_dropout = spec.dropout.value > 0,
          .one_query = s.q_len == 1};
}

// Specs, after name and dtype, of which right kernels run on many random shapes.
inline constexpr const char* kRightSpecs[] = {
    "head_dim: 8\n",
    "head_dim: 64\nmask: causal\n",
    "head_dim: 128\nmask: sliding_window(40)\n",
    "head_dim: {qk: 192, v: 128}\nmask: causal\n",
    ("head_dim: 40\n"
     "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
     "mask: doc[b, min(q_idx, kv_len - 1)] == doc[b, kv_idx]\n"),
    "head_dim: 64\nscore: score - exp2(-(h + 1) / 2.0) * (q_pos - kv_idx)\nmask: causal\n",
    "head_dim: 64\nscore: 30 * tanh(score / 30)\n",
    ("head_dim: 64\ntensors: {sinks: {dtype: float32, dims: [heads]}}\nsink: sinks[h]\n"
     "mask: causal\n"),
    "head_dim: 32\ndropout: 0.2\n",
    "head_dim: 16\nsoftmax_scale: float\nscore: 4 * score if kv_idx % 3 == 0 else score\n",
};

// Single queries among them, and single keys.
inline ProblemShape random_shape(std::mt19937_64& random) {
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  ProblemShape shape{.batch = draw(1, 2), .kv_heads = draw(1, 2)};
  shape.heads = shape.kv_heads * draw(1, 4);
  shape.q_len = draw(0, 2) == 0 ? 1 : draw(1, 150);
  shape.kv_len = draw(0, 3) == 0 ? draw(1, 40) : draw(0, 9) == 0 ? draw(1, 9000) : draw(1, 700);
  return shape;
}

}  // namespace attune::planted
