#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

using Content = WorkspaceRegion::Content;

void point(const WorkspaceRegion& region, void* data, att::LaunchParams* params) {
  switch (region.content) {
    case Content::kSchedulerCounter:
      params->scheduler_counter = static_cast<int*>(data);
      return;
    case Content::kBlockRanges:
      params->tensors[region.slot].block_ranges = data;
      return;
    case Content::kRunPositions:
      params->tensors[region.slot] = params->tensors[region.of_slot];
      params->tensors[region.slot].data = data;
      return;
    case Content::kRowReferences:
      params->row_references = static_cast<float*>(data);
      return;
    case Content::kRowDeltas:
      params->row_deltas = static_cast<float*>(data);
      return;
    case Content::kQuerySums:
      params->d_q_sums = static_cast<float*>(data);
      return;
    case Content::kHeadCounters:
      params->head_counters = static_cast<att::HeadCounters*>(data);
      return;
    case Content::kSumTurns:
      params->sum_turns = static_cast<int*>(data);
      return;
    case Content::kKeySums:
      params->d_k_sums = static_cast<float*>(data);
      return;
    case Content::kValueSums:
      params->d_v_sums = static_cast<float*>(data);
      return;
    case Content::kLearnedSums:
      params->learned_sums = static_cast<float*>(data);
      return;
    case Content::kSequenceItems:
      params->sequences.items = static_cast<att::SequenceItem*>(data);
      return;
    case Content::kKeyItems:
      params->key_items = static_cast<att::SequenceItem*>(data);
      return;
    case Content::kPieceResults:
      params->pieces.rows = static_cast<float*>(data);
      return;
    case Content::kPieceArrivals:
      params->pieces.arrivals = static_cast<int*>(data);
      return;
    case Content::kPieceItems:
      params->pieces.items = static_cast<att::PieceItem*>(data);
      return;
  }
}

}  // namespace

ProblemShape shape_of(const att::ForwardParams& params) {
  return {.batch = params.batch,
          .heads = params.heads,
          .kv_heads = params.kv_heads,
          .q_len = params.q_len,
          .kv_len = params.kv_len};
}

std::size_t workspace_bytes(const AttentionSpec& spec, const LaunchRecipe& recipe,
                            const ProblemShape& shape) {
  return static_cast<std::size_t>(workspace_bytes(spec, recipe.workspace, shape));
}

Status place_workspace(const AttentionSpec& spec, const LaunchRecipe& recipe, void* workspace,
                       att::LaunchParams* params) {
  const ProblemShape shape = shape_of(*params);
  const std::int64_t bytes = workspace_bytes(spec, recipe.workspace, shape);
  if (bytes == 0) return ok_status();  // regions that this shape has no use for, too
  if (workspace == nullptr) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "workspace-missing",
                 .message = "this kernel needs a workspace and got none",
                 .hint = "allocate workspace_bytes(shape) bytes"};
  }
  if (bytes == kTooLarge) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "workspace-too-large",
                 .message = "this problem's workspace has more bytes than can be counted"};
  }
  auto* next = static_cast<std::byte*>(workspace);
  for (const WorkspaceRegion& region : recipe.workspace) {
    point(region, next, params);
    next += region_bytes(spec, region, shape);
  }
  return ok_status();
}

PlacedRegion placed_region(const AttentionSpec& spec, const LaunchRecipe& recipe, Content content,
                           const ProblemShape& shape, void* workspace) {
  auto* next = static_cast<std::byte*>(workspace);
  for (const WorkspaceRegion& region : recipe.workspace) {
    const auto bytes = static_cast<std::size_t>(region_bytes(spec, region, shape));
    if (region.content == content) return {next, bytes};
    next += bytes;
  }
  return {};
}

}  // namespace attune
