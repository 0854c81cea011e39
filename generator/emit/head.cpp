#include "generator/emit/head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/expr/emit_functions.hpp"
#include "generator/expr/emit_gradients.hpp"
#include "generator/expr/emit_value.hpp"
#include "generator/expr/intervals.hpp"
#include "generator/plan/family.hpp"

namespace attune {
namespace {

std::string_view head_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
    case DType::kF32:
      return "f32";
    case DType::kFp8E4m3:
      return "f8_e4m3";
  }
  return "unknown";
}

float constant_scale(const AttentionSpec& spec) {
  return spec.softmax_scale.at_launch ? 1.0f : static_cast<float>(spec.softmax_scale.value);
}

std::string spec_facts(const AttentionSpec& spec) {
  // Of 256: an element is dropped when its random byte is below.
  const int drop_below =
      spec.dropout.at_launch ? 0 : static_cast<int>(std::lround(spec.dropout.value * 256));
  return fmt::format(
      "enum class DType {{ f16, bf16, f32, f8_e4m3 }};\n"
      "\n"
      "namespace spec {{\n"
      "constexpr DType kDType = DType::{};\n"
      "constexpr DType kKvDType = DType::{};\n"
      "constexpr int kResidues = {};\n"
      "constexpr int kHeadDimQk = {};\n"
      "constexpr int kHeadDimV = {};\n"
      "constexpr bool kHasMask = {};\n"
      "constexpr bool kHasScore = {};\n"
      "constexpr bool kHasSink = {};\n"
      "constexpr bool kHasDropout = {};\n"
      "constexpr bool kScaleAtLaunch = {};\n"
      "constexpr float kSoftmaxScale = {};\n"
      "constexpr bool kDropoutAtLaunch = {};\n"
      "constexpr unsigned kDropoutDropBelow = {};\n"
      "constexpr float kDropoutKeepScale = {};\n"
      "constexpr bool kDropoutSeedOnDevice = {};\n"
      "constexpr bool kIsPacked = {};\n"
      "constexpr bool kIsPaged = {};\n"
      "constexpr bool kIsStrict = {};\n"
      "constexpr bool kIsRelaxed = {};\n"
      "}}  // namespace spec\n",
      head_dtype(spec.dtype), head_dtype(kv_dtype(spec)), spec.residues, spec.head_dim_qk,
      spec.head_dim_v, spec.mask != nullptr, spec.score != nullptr, spec.sink != nullptr,
      has_dropout(spec), spec.softmax_scale.at_launch, expr::float_literal(constant_scale(spec)),
      spec.dropout.at_launch, drop_below, expr::float_literal(256.0 / (256 - drop_below)),
      spec.seed_on_device, is_packed(spec), is_paged(spec), spec.accuracy == Accuracy::kStrict,
      spec.accuracy == Accuracy::kRelaxed);
}

// What the pre-pass knows of the tensor whose runs it works out.
std::string run_constants(const AttentionSpec& spec) {
  if (!spec.runs) return "";
  const auto slot = static_cast<std::size_t>(spec.runs->numbers);
  return fmt::format(
      "constexpr int kNumbersSlot = {}, kNumbersDims = {};\n"
      "constexpr int kRunBeginSlot = {}, kRunEndSlot = {};\n"
      "constexpr int kRunsBegin = {}, kRunsEnd = {}, kNoRuns = {};\n"
      "\n",
      slot, spec.environment.tensors[slot].dims.size(), spec.runs->tensors.begin,
      spec.runs->tensors.end, expr::kRunsBegin, expr::kRunsEnd, expr::kNoRuns);
}

// The pre-pass of the mask compiler, when there are tensors for it.
std::string range_pass(const AttentionSpec& spec) {
  std::string tensors;
  for (const int slot : expr::range_slots(spec.mask)) {
    const expr::TensorDecl& tensor = spec.environment.tensors[static_cast<std::size_t>(slot)];
    tensors += fmt::format("{}make_pair_of<{}, {}>(p.tensors[{}], pair)",
                           tensors.empty() ? "" : " ||\n         ", expr::element_name(tensor.type),
                           tensor.dims.size(), slot);
  }
  if (tensors.empty()) return "";
  return fmt::format(
      "#include \"templates/tile/block_ranges.cuh\"\n"
      "\n"
      "namespace att {{\n"
      "\n"
      "{}"
      "// Makes pair number `pair` of the tensors whose ranges classify tiles, one tensor after "
      "the\n"
      "// other.\n"
      "ATT_FN bool make_range_pair(const ForwardParams& p, long long pair) {{\n"
      "  return {};\n"
      "}}\n"
      "\n"
      "}}  // namespace att\n"
      "\n"
      "#include \"templates/kernels/{}.cuh\"\n",
      run_constants(spec), tensors, spec.runs ? "runs" : "block_ranges");
}

constexpr std::string_view kContext =
    "// The (batch, head) a work item belongs to.\n"
    "struct Context {\n"
    "  const ForwardParams& params;\n"
    "  int b, h, h_kv, q_len, kv_len, q_first, kv_first;\n"
    "};\n";

// Whether a kernel cuts items of packed sequences in pieces, and lists them whole.
bool cuts_queries(const AttentionSpec& spec, const KernelPlan& plan) {
  return std::ranges::any_of(launch_recipe(spec, plan).workspace, &WorkspaceRegion::of_query_tiles);
}

// The lists of items of packed sequences, and the kernel that makes them.
std::string item_pass(const AttentionSpec& spec, const KernelPlan& plan) {
  if (!is_packed(spec)) return "";
  const LaunchRecipe recipe = launch_recipe(spec, plan);
  const WorkItem item = recipe.main().item;
  if (recipe.main().marks_arrivals) return "";
  if (item == WorkItem::kStretch) return "\n#include \"templates/kernels/stretch_counters.cuh\"\n";
  if (item == WorkItem::kListedPiece) {
    return fmt::format("\n#include \"templates/kernels/{}.cuh\"\n",
                       spec.batch_invariant   ? "fixed_piece_items"
                       : spec.shared_prefixes ? "shared_piece_items"
                                              : "piece_items");
  }
  const ItemTiles tiles = item_tiles(spec, plan);
  if (tiles.queries == 0 && tiles.keys == 0) return "";
  return fmt::format(
      "\n"
      "namespace att {{\n"
      "\n"
      "constexpr int kItemQueries = {};\n"
      "constexpr int kItemKeys = {};\n"
      "\n"
      "}}  // namespace att\n"
      "\n"
      "#include \"templates/kernels/{}.cuh\"\n",
      tiles.queries > 0 ? tiles.queries : tile_shape(plan).q,
      tiles.keys > 0 ? tiles.keys : tile_shape(plan).kv,
      cuts_queries(spec, plan) ? "cut_sequence_items"
      : tiles.keys == 0        ? "sequence_items"
      : tiles.queries == 0     ? "key_items"
                               : "backward_items");
}

}  // namespace

Result<std::string> head_text(const AttentionSpec& spec, const KernelPlan& plan,
                              const std::string& symbol) {
  const FamilyOperations* family = family_operations(plan);
  if (family == nullptr) {
    return plan_unsupported(fmt::format("this build has no {} family", to_string(plan.family())));
  }
  // Of a batch-invariant spec several kernels give the same bits; on CPUs there is one.
  const expr::HeadExpressions expressions = {
      .mask = spec.mask,
      .score = spec.score,
      .sink = spec.sink,
      .runs_are_told = spec.runs ? spec.runs->is_told : nullptr,
      .by_runs = spec.runs ? spec.runs->by_runs : nullptr,
      .run_slots = spec.runs ? std::vector{spec.runs->tensors.begin, spec.runs->tensors.end}
                             : std::vector<int>{},
      .softmax_scale = constant_scale(spec),
      .rounds_products = spec.batch_invariant && plan.target != Target::kCpu};
  std::string functions = expr::emit_functions(expressions, spec.environment);
  if (plan.pass == Pass::kBackward)
    functions += expr::emit_gradients(expressions, spec.environment);
  return fmt::format(
      "#include \"templates/params.h\"\n"
      "#include \"templates/ptx/platform.cuh\"\n"
      "#include \"templates/tile/head_support.cuh\"\n"
      "#include \"templates/tile/ranges.cuh\"\n"
      "{}"
      "\n"
      "namespace att {{\n"
      "\n"
      "{}\n"
      "{}\n"
      "{}"
      "\n"
      "namespace plan {{\n"
      "{}"
      "}}  // namespace plan\n"
      "\n"
      "}}  // namespace att\n"
      "\n"
      "#define ATT_KERNEL_NAME {}\n"
      "{}{}",
      expr::support_includes(expressions, spec.environment), spec_facts(spec), kContext, functions,
      family->head_constants(spec, plan), symbol, range_pass(spec), item_pass(spec, plan));
}

}  // namespace attune
