// What one kernel family answers about itself, for one pass. plan.cpp has the table of these; a new
// family, or a new pass of one, is one file here, one template in templates/kernels and one row in
// that table.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/cost.hpp"
#include "generator/plan/plan.hpp"

namespace attune {

// Every function is pure and thread-safe. A plan handed to one of them holds this family's tile.
struct FamilyOperations {
  Family family;
  Pass pass;
  std::string_view name;         // in a plan's text: "sm90a"
  std::string_view symbol_name;  // in a kernel's symbol: "sm90"
  // The path of the kernel's template, "templates/kernels/sm80_forward.cuh".
  std::string_view template_path;
  // That of specs in fp32, where theirs is another; empty: they have none of their own.
  std::string_view template_path_fp32 = {};
  // That of a plan, where not all have the same; null: they have.
  std::string_view (*template_path_of)(const KernelPlan& plan) = nullptr;
  // That of specs that are batch-invariant; empty: the family does not serve them.
  std::string_view template_path_invariant = {};
  // That of specs whose K and V are of fp8; empty: the family does not serve them.
  std::string_view template_path_fp8_cache = {};
  // That of specs whose sequences may share their first pages; empty: as of others, and every
  // sequence reads them for itself.
  std::string_view template_path_shared_prefixes = {};
  // OK, or kUnsupported with the reason why the family cannot run this spec on this target.
  Status (*serves)(const AttentionSpec& spec, Target target);
  // Plans that pass `check`, in a deterministic order. `serves` is OK.
  std::vector<KernelPlan> (*legal_plans)(const AttentionSpec& spec, const DeviceFacts& device);
  Status (*check)(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
  PlanResources (*resources)(const AttentionSpec& spec, const KernelPlan& plan);
  PlanCost (*plan_cost)(const AttentionSpec& spec, const KernelPlan& plan,
                        const DeviceFacts& device);
  Tiling (*tiling)(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                   const DeviceFacts& device);
  // `work` is that of the tiling. Grows with its `share`; at least what it is with `longest`,
  // `shortest` and `partial` 0 and `busiest` 1.
  ShapeCost (*shape_cost)(const AttentionSpec& spec, const KernelPlan& plan,
                          const ProblemShape& shape, const DeviceFacts& device,
                          const LiveWork& work);
  // Whether nobody need measure it: launches of the shape do what they do with another legal plan
  // that comes before this one, or no shape says what would speak against it. Null: of no plan.
  bool (*need_not_be_measured)(const AttentionSpec& spec, const KernelPlan& plan,
                               const ProblemShape& shape) = nullptr;
  // Without the mask's pre-pass. A launch's symbol is a suffix ("_rows", of the kernel
  // ATT_JOIN(ATT_KERNEL_NAME, _rows)); the main one's is empty.
  LaunchRecipe (*launch_recipe)(const AttentionSpec& spec, const KernelPlan& plan);
  // Regions that cover those of all its legal plans.
  std::vector<WorkspaceRegion> (*widest_workspace)(const AttentionSpec& spec, Target target);
  // False where a plan's kernels need strides that the tensor unit can walk.
  bool takes_any_strides;
  TileShape (*tile_shape)(const KernelPlan& plan);
  // Null where there is no shared memory.
  std::vector<SharedMatrix> (*shared_matrices)(const AttentionSpec& spec,
                                               const KernelPlan& plan) = nullptr;
  // What the tile chooses, a number for each choice that is independent of the others; always as
  // many.
  std::vector<int> (*choices)(const KernelPlan& plan);
  // The tile's part of the plan's text, "q128 k64 s2 w4", and back. `words` are what followed
  // the target; an unknown or missing word is an error.
  std::string (*tile_text)(const KernelPlan& plan);
  Status (*parse_tile)(std::span<const std::string_view> words, KernelPlan& plan);
  // The tile's part of the symbol, "q128k64s2".
  std::string (*symbol_part)(const KernelPlan& plan);
  // The body of the head's `namespace plan`: one `constexpr` a line.
  std::string (*head_constants)(const AttentionSpec& spec, const KernelPlan& plan);
};

// Of every family and pass, best first where several serve one target.
using FamilyAccessor = const FamilyOperations& (*)();
std::span<const FamilyAccessor> family_table();

// Null when this build lacks the family.
const FamilyOperations* family_operations(Family family, Pass pass);
inline const FamilyOperations* family_operations(const KernelPlan& plan) {
  return family_operations(plan.family(), plan.pass);
}

// Whether the plan's kernels are of another spec than the plan is: worked_spec(), worked_plan().
inline bool works_on_another_spec(const KernelPlan& plan) {
  return plan.residues > 1 || plan.by_runs;
}

// What the family's `serves` says, of specs that it has a template for.
Status serves(const FamilyOperations& family, const AttentionSpec& spec, Target target);

// One function a row of the table, each in its family's file.
const FamilyOperations& sm80_family();
const FamilyOperations& sm90a_family();
const FamilyOperations& cpu_family();
const FamilyOperations& decode_family();
const FamilyOperations& mla_family();
const FamilyOperations& sm80_backward_family();
const FamilyOperations& sm90a_backward_family();
const FamilyOperations& sm90a_ordered_family();
const FamilyOperations& sm90a_wide_family();
const FamilyOperations& cpu_backward_family();

// Rows of an item of packed sequences, at least: it bounds the lists, whose room is promised before
// the plan is known. On the CPU a vector's lanes.
constexpr int least_item_rows(Target target) { return target == Target::kCpu ? 8 : 16; }

// kUnsupported, id "plan-unsupported".
Error plan_unsupported(std::string message, std::string hint = {});
// kUnsupported where K and V are stored in fewer bits than Q, which most families do not read.
Status check_plain_cache(const AttentionSpec& spec, std::string_view family);
// OK, or kUnsupported: a plan that needs more shared memory than `limit` bytes of the device's.
Status check_shared_memory(const PlanResources& needs, int limit, const DeviceFacts& device);
// kBadInput, id "plan-bad-text".
Error plan_text_error(std::string message);

// "k64" with prefix 'k' -> 64; false unless the rest is a whole non-negative number.
bool parse_word(std::string_view word, std::string_view prefix, int& value);
// Words that are each a prefix and its number, as many as there are. `plan` is for errors: "an
// ordered plan".
struct PlanNumber {
  std::string_view prefix;
  int* value;
};
Status parse_numbers(std::span<const std::string_view> words,
                     std::initializer_list<PlanNumber> numbers, std::string_view plan);

constexpr int kMaxRegistersPerThread = 255;
constexpr int kMaxThreadsPerProcessor =
    1536;  // the least of sm_80 ... sm_120 (sm_86, sm_89, sm_120)

// Resident CTAs a processor by shared memory, registers and threads; 0: none fits.
int resident_ctas(const PlanResources& resources, const DeviceFacts& device);

}  // namespace attune
