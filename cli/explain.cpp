// attune explain: the mask as a kernel sees it, the plan, its memory, and what bounds it.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cli/command.hpp"
#include "cli/files.hpp"
#include "cli/memory_map.hpp"
#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "cli/problem_values.hpp"
#include "cli/spec_source.hpp"
#include "generator/explain/draw.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

struct ExplainOptions : Options {
  std::string svg;
  std::int64_t batch = 0, head = 0;
  std::uint64_t seed = 1;
};

struct Explanation {
  Pass pass = Pass::kForward;
  Target target = Target::kSm90a;
  ProblemShape shape;
  ChosenPlan chosen;
  DeviceFacts device;
  LaunchRecipe recipe;
  std::int64_t workspace_bytes = 0;
  PlanResources resources;
  std::vector<MemoryRegion> memory;
  MaskPicture picture;
  Work work;
  double roofline = 0, predicted = 0, peak_tflops = 0;
};

Result<Explanation> explain(const AttentionSpec& spec, Pass pass, const ExplainOptions& options,
                            Workbench& bench) {
  Explanation e{.pass = pass};
  ATT_TRY(const std::vector<Target> wanted, targets(options, spec.targets));
  e.target = wanted.empty() ? bench.local_target() : wanted.front();
  ATT_TRY(e.shape, shape(options, spec));
  ATT_TRY(e.chosen, plan_for(spec, e.shape, e.target, pass, options, bench));
  e.device = bench.facts(e.target);
  e.recipe = launch_recipe(spec, e.chosen.plan);
  e.workspace_bytes = workspace_bytes(worked_spec(spec, e.chosen.plan), e.recipe.workspace,
                                      worked_shape(e.shape, e.chosen.plan));
  const TileShape tile = tile_shape(e.chosen.plan);
  e.resources = resources(spec, e.chosen.plan);
  e.memory = shared_memory_map(spec, e.chosen.plan);
  ATT_TRY(const ProblemValues values, draw_values(spec, e.shape, options.seed));
  const ProblemShape pictured = typical_shape(spec, e.shape);
  ProblemValues drawn = values;
  if (is_packed(spec)) {
    ATT_TRY(drawn, draw_values(spec, pictured, options.seed));
  }
  ATT_TRY(e.picture, picture_mask(spec, {.shape = pictured,
                                         .tile_q = tile.q,
                                         .tile_kv = tile.kv,
                                         .b = options.batch,
                                         .h = options.head,
                                         .scalars = drawn.scalars,
                                         .tensors = drawn.tensors}));
  e.work = work_of(pass, spec, e.shape, values);
  const DeviceFacts of_dtype = facts_of_dtype(spec, e.device);
  e.roofline = roofline_us(e.work, of_dtype);
  e.peak_tflops = of_dtype.matrix_tflops;
  e.predicted = cost_us(spec, e.chosen.plan, e.shape, e.device);
  return e;
}

int terminal_width() {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20;
  return known ? std::min<int>(size.ws_col, 120) : 80;
}

std::string memory_text(const Explanation& e) {
  if (e.memory.empty()) return "";
  constexpr int kCells = 32;
  std::string text =
      fmt::format("\n{}  {} of {} bytes a block\n", paint("shared memory", Colour::kBold),
                  e.recipe.main().shared_memory_bytes, e.device.shared_memory_per_block_bytes);
  for (const MemoryRegion& region : e.memory) {
    const int cells = std::max(1, kCells * region.bytes / e.recipe.main().shared_memory_bytes);
    std::string bar;
    for (int i = 0; i < cells; ++i) bar += "█";
    text += fmt::format("  {:<5}{:>8}  {}  {}\n", region.name, region.bytes,
                        paint(bar, Colour::kCyan), region.content);
  }
  return text;
}

// "_rows, main, _queries": by what their symbols have beyond the recipe's.
std::string launch_names(const LaunchRecipe& recipe) {
  std::string names;
  for (const Launch& launch : recipe.launches) {
    const std::string suffix = launch.symbol.substr(recipe.symbol.size());
    names += (names.empty() ? "" : ", ") + (suffix.empty() ? "main" : suffix);
  }
  return names;
}

std::string text(const AttentionSpec& spec, const Explanation& e) {
  std::string out = draw_terminal(e.picture, spec.name,
                                  {.width = terminal_width(), .colours = has_colour(Stream::kOut)});
  const auto is_given = [](const Sample& sample) { return sample.kind == SampleKind::kGiven; };
  if (!spec.environment.tensors.empty() && !std::ranges::all_of(spec.samples, is_given))
    out += "tensors are drawn at random; --seed draws others\n";
  out += fmt::format("\n{}  {} ({})\n", paint("plan", Colour::kBold), to_string(e.chosen.plan),
                     e.chosen.origin);
  const Launch& main = e.recipe.main();
  out += fmt::format("  kernel     {}\n", e.recipe.symbol);
  if (e.pass == Pass::kBackward) {
    out += fmt::format("  launches   {}, workspace of {} bytes\n", launch_names(e.recipe),
                       e.workspace_bytes);
  }
  if (e.target != Target::kCpu) {
    out += fmt::format("  block      {} threads, about {} registers each\n", e.resources.threads,
                       e.resources.registers_per_thread);
    out += fmt::format("  grid       {}\n",
                       main.persistent
                           ? fmt::format("persistent, {} a processor", main.ctas_per_processor)
                           : std::string("one block a work item"));
  }
  out += memory_text(e);
  const bool matrix = e.work.flops / (e.peak_tflops * 1e6) >= e.roofline;
  out += fmt::format("\n{}  {}\n", paint("roofline", Colour::kBold), e.device.name);
  out += fmt::format(
      "  work       {:.3g} GFLOP over the live {:.2f} %, {:.3g} MB, {:.0f} FLOP a byte\n",
      e.work.flops / 1e9, e.work.live_share * 100, e.work.bytes / 1e6, e.work.flops / e.work.bytes);
  out +=
      fmt::format("  peak       {} TFLOP/s, {} GB/s: bound by {}\n", short_number(e.peak_tflops),
                  short_number(e.device.memory_gb_per_s), matrix ? "the matrix units" : "memory");
  out += fmt::format("  at best    {:.1f} us; the cost model expects {:.1f} us\n", e.roofline,
                     e.predicted);
  return out;
}

Json json(const LoadedSpec& loaded, const Explanation& e) {
  Json memory = Json::array();
  for (const MemoryRegion& region : e.memory) {
    memory.push_back({{"name", region.name}, {"content", region.content}, {"bytes", region.bytes}});
  }
  Json launches = Json::array();
  for (const Launch& launch : e.recipe.launches) launches.push_back(launch.symbol);
  return {{"spec", loaded.source},
          {"target", to_string(e.target)},
          {"shape", to_string(e.shape)},
          {"pass", to_string(e.pass)},
          {"plan", to_string(e.chosen.plan)},
          {"plan_from", e.chosen.origin},
          {"symbol", e.recipe.symbol},
          {"threads", e.resources.threads},
          {"registers_estimate", e.resources.registers_per_thread},
          {"shared_memory_bytes", e.recipe.main().shared_memory_bytes},
          {"shared_memory", std::move(memory)},
          {"launches", std::move(launches)},
          {"workspace_bytes", e.workspace_bytes},
          {"tiles",
           {{"q", e.picture.tile_q},
            {"kv", e.picture.tile_kv},
            {"skip", e.picture.counts.skip},
            {"partial", e.picture.counts.partial},
            {"full", e.picture.counts.full}}},
          {"live_share", e.work.live_share},
          {"flops", e.work.flops},
          {"bytes", e.work.bytes},
          {"device", e.device.name},
          {"roofline_us", e.roofline},
          {"predicted_us", e.predicted}};
}

Result<ExitCode> run(const ExplainOptions& options) {
  ATT_CHECK(check_options(options));
  Workbench bench(options);
  ATT_TRY(LoadedSpec loaded, load_spec(options.specs.front()));
  ATT_TRY(const std::vector<Pass> wanted, first_or_named_passes(options, loaded.spec));
  if (!options.tensors.empty()) {
    ATT_TRY(const ProblemShape explained, shape(options, loaded.spec));
    ATT_CHECK(give_tensors(options, std::span(&explained, 1), loaded.spec));
  }
  std::vector<Explanation> explanations;
  for (const Pass pass : wanted) {
    ATT_TRY(Explanation one, explain(loaded.spec, pass, options, bench));
    explanations.push_back(std::move(one));
  }
  if (!options.svg.empty()) {
    // Passes see one mask, in tiles of their own: the first one's are drawn.
    ATT_CHECK(write_file(options.svg, draw_svg(explanations.front().picture, loaded.spec.name)));
    note("wrote " + options.svg);
  }
  if (!options.json) {
    for (const Explanation& one : explanations) {
      if (&one != &explanations.front()) print("\n");
      print(text(loaded.spec, one));
    }
    return 0;
  }
  Json all = Json::array();
  for (const Explanation& one : explanations) all.push_back(json(loaded, one));
  print_json(all.size() == 1 ? all.items().front() : Json{{"passes", std::move(all)}});
  return 0;
}

}  // namespace

Command add_explain(CommandLine& parent) {
  auto options = std::make_shared<ExplainOptions>();
  CommandLine line =
      parent.command("explain", "Draw the mask, its tile classes, plan, memory, roofline");
  add_one_kernel(line, *options);
  add_passes(line, *options);
  add_tensors(line, *options);
  line.option("--svg", options->svg, "also draw the mask into this file");
  line.option("--batch", options->batch, "the batch entry to draw", {.show_default = true});
  line.option("--head", options->head, "the head to draw", {.show_default = true});
  line.option("--seed", options->seed, "of the tensors a mask reads", {.show_default = true});
  line.footer(
      "Example:\n  attune explain sliding_window --shape heads=8,q_len=4096 --svg mask.svg");
  return {line, [options] { return finish(run(*options)); }};
}

}  // namespace attune::cli
