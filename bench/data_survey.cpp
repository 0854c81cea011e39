// Times of plans from all over the space of masks that tensors decide, on several kinds of tensors:
// what the cost model and the choice among plans are fitted to.
//
//     data_survey [--device D] [--budget S] [--plans N] [--rounds N] DIRECTORY [MASK...]
//     data_survey --list DIRECTORY [MASK...]      which plans; no device
//
// A kind: what the spec DIRECTORY/MASK.yaml says ("said"), what the tuner varies it to and confirms
// it on, the tensors in DIRECTORY/MASK ("real"), and those in each DIRECTORY/MASK@NAME. Interleaved
// rounds from cold L2; nothing is verified. One JSON object a line on stdout.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>

#include "bench/data_command.hpp"
#include "bench/data_problem.hpp"
#include "generator/plan/distance.hpp"
#include "runtime/support/parallel.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/statistics.hpp"

namespace attune {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFirstOfModel = 4;
constexpr std::size_t kMostNeighbours = 24;  // of the first guess
constexpr double kHopeless = 1.6;            // times the fastest after two rounds

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Plans of which the first in the model's order stands for the others; empty: none is looked at.
std::string cell_of(const KernelPlan& plan, const ProblemShape& shape) {
  const bool is_short = shape.q_len <= 64;
  if (const auto* d = std::get_if<DecodePlan>(&plan.tile)) {
    if (!is_short) return "";
    return fmt::format("d q{} k{} w{} p{} {}", d->tile_q, d->step_keys, d->warps,
                       d->in_cluster ? d->pieces : std::min(d->pieces, 64), d->in_cluster);
  }
  if (const auto* a = std::get_if<Sm80Plan>(&plan.tile)) {
    return a->frozen_max ? fmt::format("a q{} k{} w{}", a->tile_q, a->tile_kv, a->warps) : "";
  }
  const auto* t = std::get_if<Sm90aPlan>(&plan.tile);
  if (t == nullptr || !t->frozen_max || t->p_in_shared) return "";
  if (t->heads > 1 && shape.heads == shape.kv_heads) return "";
  if (t->warpgroups == 1 && t->tile_kv > 128) return "";
  const bool usual = t->cluster == 1 && t->tma_store && !t->ping_pong && t->heads == 1 &&
                     t->schedule == Sm90aPlan::Schedule::kLongestFirst;
  const bool common = t->tile_kv == 64 || t->tile_kv == 128;
  const std::string base =
      fmt::format("h w{} k{} b{}", t->warpgroups, t->tile_kv, t->score_buffers);
  if (usual) return base + (t->tile_kv <= 128 && t->q_in_registers ? " q" : "");
  const int odd = (t->cluster > 1) + !t->tma_store + t->ping_pong + (t->heads > 1) +
                  (t->schedule != Sm90aPlan::Schedule::kLongestFirst);
  if (!common || odd > 1) return "";
  return base + fmt::format(" o{}{}{}{}{}g{}", t->cluster, t->tma_store, t->ping_pong,
                            (t->heads > 1), static_cast<int>(t->schedule), t->heads_per_group);
}

std::vector<KernelPlan> surveyed(const std::vector<KernelPlan>& by_said,
                                 const std::vector<KernelPlan>& by_real, const ProblemShape& shape,
                                 std::size_t most) {
  std::vector<KernelPlan> plans;
  std::set<KernelPlan> taken;
  const auto add = [&](const KernelPlan& plan) {
    if (plans.size() < most && taken.insert(plan).second) plans.push_back(plan);
  };
  for (std::size_t i = 0; i < kFirstOfModel; ++i) {
    add(by_real[i]);
    add(by_said[i]);
  }
  for (const KernelPlan& plan : by_said) {
    if (plans.size() == 2 * kFirstOfModel + kMostNeighbours) break;
    if (plan_distance(plan, by_said.front()) == 1) add(plan);
  }
  std::set<std::string> cells{""};
  std::size_t of_sm80 = 0;
  for (const KernelPlan& plan : by_real) {
    const std::string cell = cell_of(plan, shape);
    if (!cells.insert(cell).second) continue;
    if (plan.family() == Family::kSm80 && ++of_sm80 > 4) continue;
    add(plan);
  }
  return plans;
}

Result<std::vector<std::pair<std::string, AttentionSpec>>> kinds_of(const std::string& directory,
                                                                    const std::string& mask,
                                                                    const Problem& problem) {
  std::vector<std::pair<std::string, AttentionSpec>> kinds{{"real", problem.real},
                                                           {"said", problem.said}};
  for (const auto& varied :
       {varied_specs(problem.said, problem.shape), confirming_specs(problem.said, problem.shape)}) {
    for (const VariedSpec& one : varied) kinds.emplace_back(one.data.label, one.spec);
  }
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(mask + "@")) names.insert(name);
  }
  for (const std::string& name : names) {
    std::vector<std::string> given;
    for (const expr::TensorDecl& tensor : problem.said.environment.tensors) {
      const auto file = std::filesystem::path(directory) / name / (tensor.name + ".npy");
      given.push_back(tensor.name + "=" + file.string());
    }
    AttentionSpec spec = problem.said;
    ATT_CHECK(give_tensors(given, spec));
    kinds.emplace_back(name.substr(mask.size()), std::move(spec));
  }
  return kinds;
}

std::map<KernelPlan, double> timed(LocalExecutor& executor, std::vector<KernelPlan> plans,
                                   int rounds) {
  std::map<KernelPlan, std::vector<double>> samples;
  for (int round = 0; round < rounds; ++round) {
    std::vector<KernelPlan> left;
    double best = INFINITY;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const KernelPlan& plan = plans[(static_cast<std::size_t>(round) + i) % plans.size()];
      const Result<double> us = executor.time_us(plan);
      if (!us.ok()) {
        fmt::print(stderr, "{}: {}\n", to_string(plan), us.error().message);
        samples.erase(plan);
        continue;
      }
      samples[plan].push_back(*us);
      left.push_back(plan);
      best = std::min(best, spread_of(samples[plan]).median);
    }
    plans.clear();
    for (const KernelPlan& plan : left) {
      if (round != 1 || spread_of(samples[plan]).median < kHopeless * best) plans.push_back(plan);
    }
  }
  std::map<KernelPlan, double> medians;
  for (const auto& [plan, times] : samples) medians[plan] = spread_of(times).median;
  return medians;
}

Status survey(const DataCommand& options, Device* device, Compiler* compiler,
              const std::string& mask, double deadline) {
  ATT_TRY(const Problem problem, open_problem(options.directory, mask));
  const DeviceFacts facts = device != nullptr ? device->facts() : device_facts(Target::kSm90a);
  ATT_TRY(const auto by_said, plans_by_cost(problem.said, problem.shape, facts));
  ATT_TRY(const auto by_real, plans_by_cost(problem.real, problem.shape, facts));
  std::vector<KernelPlan> plans = surveyed(by_said, by_real, problem.shape, options.plans);
  if (options.without_device) {
    for (const KernelPlan& plan : plans) {
      fmt::print("{}: {}, {:.1f} us by the model\n", mask, to_string(plan),
                 cost_us(problem.real, plan, problem.shape, facts));
    }
    return ok_status();
  }
  ATT_TRY(const auto kinds, kinds_of(options.directory, mask, problem));
  ATT_TRY(const auto store, open_store(options.directory + "/" + mask + ".survey.db"));
  Compiler* const compilers[] = {compiler};
  std::vector<char> compiled(plans.size());
  {
    LocalExecutor executor(problem.real, problem.shape, *device, compilers, store.get(), 3);
    parallel_for(static_cast<std::int64_t>(plans.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      if (now() < deadline) compiled[at] = executor.compile(plans[at]).ok();
    });
  }
  std::vector<KernelPlan> there;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (compiled[i] != 0) there.push_back(plans[i]);
  }
  Json line{{"mask", mask}, {"shape", to_string(problem.shape)}};
  for (const KernelPlan& plan : there) {
    line["plans"].push_back(to_string(plan));
    line["model real"].push_back(std::round(cost_us(problem.real, plan, problem.shape, facts)));
  }
  for (const auto& [name, spec] : kinds) {
    LocalExecutor executor(spec, problem.shape, *device, compilers, store.get(), 3);
    const auto medians = timed(executor, there, options.rounds);
    Json& times = line["us"][name];
    for (const KernelPlan& plan : there) {
      const auto at = medians.find(plan);
      times.push_back(at == medians.end() ? -1 : std::round(10 * at->second) / 10);
    }
  }
  line["left s"] = deadline - now();
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
  return ok_status();
}

Status run(const DataCommand& options) {
  std::unique_ptr<Device> device;
  std::unique_ptr<Compiler> compiler;
  if (!options.without_device) {
    ATT_TRY(device, open_device(options.device));
    ATT_TRY(compiler, open_compiler(device->facts().target));
  }
  const double began = now();
  Status last = ok_status();
  for (std::size_t i = 0; i < options.masks.size(); ++i) {
    const double left_s = options.budget_s - (now() - began);
    if (left_s < 0) break;
    const double deadline = now() + 0.6 * left_s / static_cast<double>(options.masks.size() - i);
    Status status = survey(options, device.get(), compiler.get(), options.masks[i], deadline);
    if (status.ok()) continue;
    fmt::print(stderr, "{}: {}", options.masks[i], render(status.error()));
    last = std::move(status);
  }
  return last;
}

}  // namespace
}  // namespace attune

int main(int argc, char** argv) {
  using namespace attune;
  CLI::App app("Times of plans of masks that tensors decide");
  DataCommand options{.plans = 96, .rounds = 9};
  if (const auto ended =
          parse_data_command(argc, argv, app, "--list", "say which plans; no device", options))
    return *ended;
  const Status status = run(options);
  if (!status.ok()) fmt::print(stderr, "{}", render(status.error()));
  return status.ok() ? 0 : 1;
}
