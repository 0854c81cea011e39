// How far from the best plan a launch runs whose mask is decided by tensors that no tuner had seen.
//
//     data_regret DEVICE DIRECTORY MASK...
//
// Of each DIRECTORY/MASK.yaml the tuner searches on what the spec says of its tensors, or on
// several plausible kinds where it says nothing, at the first of the spec's shapes. What counts is
// then measured on the real ones, DIRECTORY/MASK/NAME.npy: the plan found, the one that a search on
// the real tensors finds, the cost model's first guesses without them and with them, and the best
// of a yardstick, against each other in interleaved rounds. One JSON object a line on stdout;
// bench/data_regret.py makes the tensors and the table. DEVICE: cuda:0 or cpu.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "bench/duel.hpp"
#include "generator/plan/mask_data.hpp"
#include "runtime/specs/tensor_file.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/search/search.hpp"
#include "tuner/tuner.hpp"

namespace attune {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 40;
// Of the model's order with the real tensors; and spread evenly over the rest, which would show it
// if the model were wrong about all of the first.
constexpr std::size_t kFirstGuesses = 32, kSpread = 32;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<KernelPlan> yardstick(const std::vector<KernelPlan>& legal) {
  const std::size_t first = std::min(kFirstGuesses, legal.size());
  std::vector<KernelPlan> plans(legal.begin(), legal.begin() + static_cast<std::ptrdiff_t>(first));
  const std::size_t rest = legal.size() - first;
  for (std::size_t i = 0; i < std::min(kSpread, rest); ++i)
    plans.push_back(legal[first + (2 * i + 1) * rest / (2 * kSpread)]);
  return plans;
}

class Bench {
 public:
  Bench(Device& device, Compiler& compiler, std::string directory)
      : device_(device), compilers_{&compiler}, directory_(std::move(directory)) {}

  Result<Json> measure(const std::string& name) {
    ATT_CHECK(open(name));
    ATT_TRY(const auto store, open_store(directory_ + "/" + name + ".db"));
    ATT_TRY(const TuneResult found, tune_as_said(*store));
    ATT_TRY(const auto own, open_store(directory_ + "/" + name + ".own.db"));
    ATT_TRY(const TuneResult on_own, tune(real_, shape_, device_, compilers_, *own, {},
                                          [](const TuneProgress&) { return true; }));
    ATT_TRY(const KernelPlan first, default_plan(spec_, shape_, device_.facts()));
    ATT_TRY(const std::vector<KernelPlan> legal, plans_by_cost(real_, shape_, device_.facts()));
    const std::vector<KernelPlan> plans = yardstick(legal);
    ATT_TRY(const KernelPlan best, fastest(plans, *own));
    LocalExecutor executor(real_, shape_, device_, compilers_, own.get(), 3);
    ATT_TRY(const Json medians, duel(executor,
                                     {{"first", first},
                                      {"first with tensors", legal.front()},
                                      {"tuned", found.plan},
                                      {"tuned on them", on_own.plan},
                                      {"yardstick", best}},
                                     kRounds));
    const MaskData data = mask_data(real_, shape_);
    return Json{{"mask", name},
                {"shape", to_string(shape_)},
                {"said", described_samples(spec_)},
                {"live", data.live},
                {"full", data.full},
                {"legal", legal.size()},
                {"measured", plans.size()},
                {"seconds", found.seconds},
                {"seconds on them", on_own.seconds},
                {"plan", to_string(found.plan)},
                {"best", to_string(best)},
                {"us", medians}};
  }

 private:
  Status open(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(directory_) / name;
    const std::string path = folder.string() + ".yaml";
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    ATT_TRY(spec_, parse_spec(text, path));
    shape_ = spec_.tune_shapes.at(0);
    std::vector<std::string> given;
    for (const expr::TensorDecl& tensor : spec_.environment.tensors)
      given.push_back(tensor.name + "=" + (folder / (tensor.name + ".npy")).string());
    real_ = spec_;
    ATT_CHECK(give_tensors(given, real_));
    return check_given(real_, shape_);
  }

  Result<TuneResult> tune_as_said(Store& store) {
    const double began = now();
    ATT_TRY(TuneResult found,
            tune_on_plausible_data(spec_, shape_, device_, store, {},
                                   [&](const AttentionSpec& described, const TuneOptions& options) {
                                     return tune(described, shape_, device_, compilers_, store,
                                                 options, [](const TuneProgress&) { return true; });
                                   }));
    found.seconds = now() - began;
    return found;
  }

  Result<KernelPlan> fastest(const std::vector<KernelPlan>& plans, Store& code) {
    ATT_TRY(const auto store, open_store(directory_ + "/yardstick.db"));
    LocalExecutor executor(real_, shape_, device_, compilers_, &code, 2);
    const SearchProblem problem{.key = {.spec_hash = spec_hash(spec_),
                                        .device = device_.identity(),
                                        .shape = shape_,
                                        .protocol = std::string(kMeasurementProtocol)},
                                .plans = plans};
    ATT_TRY(const TuneResult found, search(problem, executor, *store, {.exhaustive = true}, now,
                                           [](const TuneProgress&) { return true; }));
    return found.plan;
  }

  Device& device_;
  const std::vector<Compiler*> compilers_;
  const std::string directory_;
  AttentionSpec spec_, real_;  // as the file says; with the real tensors
  ProblemShape shape_;
};

Status run(const std::string& device_name, const std::string& directory,
           std::span<char* const> masks) {
  ATT_TRY(const std::unique_ptr<Device> device, open_device(device_name));
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_compiler(device->facts().target));
  const auto say = [](const Json& line) {
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  };
  say({{"device", device->identity()}, {"compiler", compiler->identity()}});
  Bench bench(*device, *compiler, directory);
  for (const char* mask : masks) {
    ATT_TRY(const Json line, bench.measure(mask));
    say(line);
  }
  return ok_status();
}

}  // namespace
}  // namespace attune

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: data_regret DEVICE DIRECTORY MASK...\n");
    return 2;
  }
  const attune::Status status = attune::run(
      argv[1], argv[2], std::span<char* const>(argv + 3, static_cast<std::size_t>(argc - 3)));
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", render(status.error()));
  return attune::exit_code(status.error().kind);
}
