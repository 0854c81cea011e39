// What the elements of a tensor are like: `sample: segments(mean=700)` in a spec. Problems that are
// made up, to tune, to time, to draw, take their tensors from it; kernels and hashes do not see it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "generator/expr/ast.hpp"
#include "generator/support/result.hpp"

namespace attune {

namespace expr {
struct TensorValues;
}

enum class SampleKind : std::uint8_t {
  kUnsaid,       // nothing is known
  kConstant,     // (value)
  kUniform,      // (low, high): both included
  kNormal,       // (mean, deviation)
  kSorted,       // (low, high): uniform, ascending along the last dim
  kSegments,     // (mean): numbers of segments along the last dim, so many elements long on average
  kPermutation,  // of 0 to n - 1 along the last dim
  kSubtreeEnds,  // (branch): of the nodes of a tree in preorder, where their subtrees end
  kAncestors,    // (branch): [.., i, j], whether node j is i or an ancestor of i
  kLengths,      // (low, high): shares of kv_len
  kChance,       // (share) of true
  kSlopes,       // 2^(-8 (i + 1) / n) along the last dim, as ALiBi's
  kGiven,        // `given`, from a file or a host
};

struct Sample {
  SampleKind kind = SampleKind::kUnsaid;
  std::array<double, 2> arguments{};  // as many as the kind has
  // Numbers of which few are large and many small, or that lie together; docs/spec.md.
  bool skewed = false;
  // Other numbers of the same kind: what was chosen on one draw is confirmed on another.
  bool another = false;
  std::shared_ptr<const expr::TensorValues> given = nullptr;  // of kGiven
  bool operator==(const Sample&) const = default;
};

// "segments(mean=700)", "another skewed segments(mean=700)"; "" of kUnsaid.
std::string to_string(const Sample& sample);

// Whether samples of the kind may be skewed.
bool may_be_skewed(SampleKind kind);
// Whether another draw of the kind has other numbers.
bool is_random(SampleKind kind);

// What `to_string` makes; arguments may also be told by their order, `mean: 700` is as good as
// `mean=700`, and those with defaults may be left out. Fails with "sample-syntax",
// "sample-unknown", "sample-argument" or "sample-type" where the tensor's type or dims cannot have
// it.
Result<Sample> parse_sample(std::string_view text, const expr::TensorDecl& tensor);

}  // namespace attune
