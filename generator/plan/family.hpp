// What one kernel family answers about itself. plan.cpp dispatches over the table of these; a new
// family is one file here, one template in templates/kernels and one row in that table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune {

// Every function is pure and thread-safe. A plan handed to one of them holds this family's tile.
struct FamilyOperations {
  Family family;
  std::string_view name;         // in a plan's text: "sm90a"
  std::string_view symbol_name;  // in a kernel's symbol: "sm90"
  // The path of the kernel's template, "templates/kernels/sm80_forward.cuh".
  std::string_view (*template_path)(Pass pass);
  // OK, or kUnsupported with the reason why the family cannot run this spec on this target.
  Status (*serves)(const AttentionSpec& spec, Target target);
  // Plans that pass `check`, in a deterministic order. `serves` is OK.
  std::vector<KernelPlan> (*legal_plans)(const AttentionSpec& spec, const DeviceFacts& device);
  Status (*check)(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
  PlanResources (*resources)(const AttentionSpec& spec, const KernelPlan& plan);
  double (*cost_us)(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                    const DeviceFacts& device);
  // Everything but the symbol.
  LaunchRecipe (*launch_recipe)(const AttentionSpec& spec, const KernelPlan& plan);
  // The tile's part of the plan's text, "q128 k64 s2 w4", and back. `words` are what followed
  // the target; an unknown or missing word is an error.
  std::string (*tile_text)(const KernelPlan& plan);
  Status (*parse_tile)(std::span<const std::string_view> words, KernelPlan& plan);
  // The tile's part of the symbol, "q128k64s2".
  std::string (*symbol_part)(const KernelPlan& plan);
  // The body of the head's `namespace plan`: one `constexpr` a line.
  std::string (*head_constants)(const AttentionSpec& spec, const KernelPlan& plan);
};

// Null when this build lacks the family.
const FamilyOperations* family_operations(Family family);

// One function a row of the table, each in its family's file.
const FamilyOperations& sm80_family();
const FamilyOperations& sm90a_family();
const FamilyOperations& cpu_family();

// kUnsupported, id "plan-unsupported".
Error plan_unsupported(std::string message, std::string hint = {});
// kBadInput, id "plan-bad-text".
Error plan_text_error(std::string message);

// "k64" with prefix 'k' -> 64; false unless the rest is a whole non-negative number.
bool parse_word(std::string_view word, std::string_view prefix, int& value);

constexpr int kMaxRegistersPerThread = 255;
constexpr int kMaxThreadsPerProcessor =
    1536;  // the least of sm_80 ... sm_120 (sm_86, sm_89, sm_120)

// Resident CTAs a processor by shared memory, registers and threads; 0: none fits.
int resident_ctas(const PlanResources& resources, const DeviceFacts& device);

}  // namespace attune
