#include "cli/tuning.hpp"

#include <fmt/format.h>

#include "cli/progress.hpp"
#include "cli/sequence_options.hpp"
#include "cli/spec_names.hpp"
#include "tuner/isolation/tune_isolated.hpp"
#include "tuner/run_search.hpp"

namespace attune::cli {
namespace {

std::string_view describe(TuneState state) {
  switch (state) {
    case TuneState::kWaiting:
      return "waiting for another tuner";
    case TuneState::kCompiling:
      return "compiling";
    case TuneState::kVerifying:
      return "verifying";
    case TuneState::kMeasuring:
      return "measuring";
    case TuneState::kDone:
      return "done";
  }
  return "";
}

}  // namespace

void add_tuning(CommandLine& line, TuningOptions& options) {
  line.option("--max-candidates", options.search.max_candidates,
              "try at most so many plans, on each kind of data", {.range = {{1, 1'000'000}}});
  line.option("--compile-threads", options.search.compile_threads,
              "default: the cores this process may use", {.range = {{1, 1024}}});
  line.flag("--force", options.search.force, "measure again what is already measured");
  line.flag("--exhaustive", options.search.exhaustive, "try every legal plan");
  line.flag("--in-process", options.in_process,
            "without worker processes: a kernel that hangs or faults takes this command along");
}

Result<std::vector<TuningProblem>> tuning_problems(const Options& options) {
  std::vector<TuningProblem> found;
  for (const std::string& source : options.specs) {
    ATT_TRY(LoadedSpec loaded, load_spec(source));
    ATT_TRY(const std::vector<Pass> wanted, passes(options, loaded.spec));
    ATT_TRY(const std::vector<ProblemShape> shapes, tune_shapes(options, loaded.spec));
    ATT_CHECK(give_tensors(options, shapes, loaded.spec));
    ATT_CHECK(give_sequences(options, shapes, loaded.spec));
    for (const ProblemShape& one : shapes) {
      for (const Pass pass : wanted) found.push_back({loaded, one, pass});
    }
  }
  return found;
}

DeviceTuner::DeviceTuner(Options options, TuningOptions tuning)
    : options_(std::move(options)), tuning_(std::move(tuning)), bench_(options_) {}

Result<TuneResult> DeviceTuner::tune(const TuningProblem& problem, Store& store,
                                     const TuneObserver& observer) {
  ATT_TRY(Device * device, bench_.device());
  const AttentionSpec& spec = problem.loaded.spec;
  ATT_CHECK(check_target(spec, *device));
  ATT_TRY(const std::vector<Compiler*> compilers, bench_.compilers(device->facts().target));
  TuneOptions search = tuning_.search;
  search.pass = problem.pass;
  if (tuning_.in_process) {
    return tune_on_plausible_data(spec, problem.shape, *device, store, search,
                                  [&](const AttentionSpec& described, const TuneOptions& options) {
                                    return attune::tune(described, problem.shape, *device,
                                                        compilers, store, options, observer);
                                  });
  }
  std::vector<std::string> names;
  for (const Compiler* compiler : compilers) names.push_back(compiler_name(*compiler));
  const bool cpu = device->facts().target == Target::kCpu;
  // The workers open what this process opened.
  const WorkerProblem shared{
      .spec_yaml = problem.loaded.text,
      .spec_file = problem.loaded.source,
      .shape = problem.shape,
      .device = !options_.device.empty() ? options_.device : (cpu ? "cpu" : "cuda:0"),
      .compilers = std::move(names),
      .cache = store.path(),
      .seed = fresh_seed(),
      .tensors = options_.tensors};
  return tune_on_plausible_data(spec, problem.shape, *device, store, search,
                                [&](const AttentionSpec& described, const TuneOptions& options) {
                                  return tune_isolated(shared, described, *device, compilers, store,
                                                       workers_, options, observer);
                                });
}

std::string progress_text(const TuneProgress& progress, const AttentionSpec& spec) {
  std::string text(describe(progress.state));
  if (!progress.data.empty()) text += " on " + with_tensor_names(progress.data, spec);
  if (progress.best_us > 0) text += fmt::format(", best {:.1f} us", progress.best_us);
  if (progress.eta_seconds > 0) text += fmt::format(", {} left", duration(progress.eta_seconds));
  if (progress.best_us > 0)
    text += fmt::format(": {}, {}", progress.best_plan, progress.best_compiler);
  return text;
}

}  // namespace attune::cli
