// How the GPU families' backward kernels add up gradients of what a spec learns.
#pragma once

#include <string>
#include <vector>

#include "generator/plan/launch.hpp"
#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"

namespace attune {

// What several (batch, head) add to of a deterministic spec's dense tensors, each element by one
// pair of them: an item has to take them all, one after the other.
struct LoopedItems {
  bool batches = false, heads = false;
  bool any() const { return batches || heads; }
};
// Everything here is a pure function of the spec and thread-safe.
LoopedItems looped_items(const AttentionSpec& spec);

// kUnsupported where a deterministic spec's sums would have no order. Sums of what a head has a
// known number of have one, and so have those of elements that one pair alone looks up; of those
// that pairs of several heads look up, in kernels whose items take them all.
Status learns_in_order(const AttentionSpec& spec, bool has_looped_items);

// The regions, and the workspace's sums, if there are any.
std::vector<WorkspaceRegion> with_learned(const AttentionSpec& spec,
                                          std::vector<WorkspaceRegion> regions);

// Adds the region and the launch that adds the sums up, where the spec needs them.
void add_learned(const AttentionSpec& spec, LaunchRecipe& recipe);

// Of the head's namespace plan.
std::string learned_constants(const AttentionSpec& spec);

}  // namespace attune
