#include "tuner/measure/pass_problems.hpp"

#include <algorithm>

#include "generator/spec/residues.hpp"
#include "runtime/support/memory.hpp"
#include "tuner/measure/backward_problems.hpp"
#include "tuner/measure/forward_problems.hpp"
#include "tuner/measure/memory_need.hpp"

namespace attune {
namespace {

constexpr std::int64_t kCheckedHeads = 2;  // of keys
constexpr std::int64_t kCheckedBatch = 2;
// Neither a multiple of any tile nor of each other; one tile and a bit, and three tiles and a bit.
constexpr std::int64_t kRaggedQueries = 193, kRaggedKeys = 331;

}  // namespace

std::vector<ProblemShape> verification_shapes(const AttentionSpec& spec, Pass pass,
                                              const ProblemShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  ProblemShape reduced = shape;
  reduced.batch = std::min(shape.batch, kCheckedBatch);
  reduced.kv_heads = std::min(shape.kv_heads, kCheckedHeads);
  reduced.heads = reduced.kv_heads * group;
  // Where lengths are of all sequences together, fewer sequences have fewer tokens.
  const auto of_the_rest = [&](std::int64_t tokens) {
    return (tokens * reduced.batch + shape.batch - 1) / shape.batch;
  };
  if (is_packed(spec)) reduced.q_len = of_the_rest(shape.q_len);
  if (spec.layout == Layout::kThd) reduced.kv_len = of_the_rest(shape.kv_len);
  ProblemShape ragged = reduced;
  const bool square = shape.q_len == shape.kv_len;
  ragged.q_len = std::min(reduced.q_len, square ? kRaggedKeys : kRaggedQueries);
  ragged.kv_len = std::min(reduced.kv_len, kRaggedKeys);
  if (const int residues = residue_count(spec, pass); has_residues(shape, residues)) {
    ragged.q_len = (ragged.q_len + residues - 1) / residues * residues;
    ragged.kv_len = (ragged.kv_len + residues - 1) / residues * residues;
  }
  if (ragged == reduced) return {reduced};
  return {reduced, ragged};
}

Status check_memory(Pass pass, const ProblemSource& source) {
  const DeviceFacts& facts = source.device.facts();
  return check_fits(need_of_timing(source.spec, source.shape, facts, pass), source.shape, facts,
                    available_memory_bytes());
}

std::unique_ptr<PassProblems> make_problems(Pass pass, const ProblemSource& source) {
  if (pass == Pass::kBackward) return std::make_unique<BackwardProblems>(source);
  return std::make_unique<ForwardProblems>(source);
}

}  // namespace attune
