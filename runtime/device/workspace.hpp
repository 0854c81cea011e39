// Where the regions of a recipe lie in a launch's workspace, and the params that point at them. All
// functions are pure, thread-safe and allocate nothing.
#pragma once

#include <cstddef>

#include "generator/plan/plan.hpp"
#include "templates/params.h"

namespace attune {

ProblemShape shape_of(const att::ForwardParams& params);

// kTooLarge where 64 bits do not hold them.
std::size_t workspace_bytes(const AttentionSpec& spec, const LaunchRecipe& recipe,
                            const ProblemShape& shape);

// Points every field of `params` that is a region of the recipe at its place in `workspace`.
// kBadInput, id "workspace-missing" or "workspace-too-large".
Status place_workspace(const AttentionSpec& spec, const LaunchRecipe& recipe, void* workspace,
                       att::LaunchParams* params);

struct PlacedRegion {
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // a multiple of 16
};
// The region as place_workspace() placed it; nothing when the recipe has none.
PlacedRegion placed_region(const AttentionSpec& spec, const LaunchRecipe& recipe,
                           WorkspaceRegion::Content content, const ProblemShape& shape,
                           void* workspace);

}  // namespace attune
