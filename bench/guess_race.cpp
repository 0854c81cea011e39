// How far first guesses are from the best of their likely rivals, on specs' own shapes. JSON lines.
//
//     guess_race candidates SPEC...       plans to race: {"spec", "plan"}; no GPU
//     guess_race backward SPEC...         the same of the backward pass
//     guess_race serving SPEC...          the same of packed sequences, a plan of each kind
//     guess_race compile CACHE LIST S     compiles these for S seconds, and says which were; no GPU
//     guess_race run CACHE LIST S         times them, beginning no shape after S seconds
//     guess_race replay TIMES [SHOWN]     what today's model takes of what `run` wrote; no GPU
//
// SPEC is a file with `tune: shapes:`. Of each shape there race: the first guess, what differs from
// it in one part that has little to do with the tile, and the cheapest plans of other tiles; of the
// backward pass, which has few plans, the cheapest ones. Those of all of a spec's shapes race on
// each of them. Results are not looked at: the tuner verifies.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "generator/plan/any_pages.hpp"
#include "generator/plan/plan.hpp"
#include "runtime/support/parallel.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/search/search.hpp"
#include "tuner/statistics.hpp"

namespace attune {
namespace {

using Json = nlohmann::ordered_json;
using Listed = std::pair<std::string, KernelPlan>;  // a spec's file, a plan

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<AttentionSpec> spec_of(const std::string& path) {
  std::ifstream file(path);
  return parse_spec(std::string{std::istreambuf_iterator<char>(file), {}}, path);
}

void report(const Json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

const Sm90aPlan* hopper(const KernelPlan& plan) { return std::get_if<Sm90aPlan>(&plan.tile); }

auto tile_key(const Sm90aPlan& t) {
  return std::tuple(t.warpgroups, t.tile_kv, t.score_buffers, t.q_in_registers, t.ping_pong,
                    t.cluster, t.heads, t.pieces);
}

// How many of the parts beside the tile are others.
int other_parts(const Sm90aPlan& a, const Sm90aPlan& b) {
  return (std::tuple(a.schedule, a.heads_per_group) != std::tuple(b.schedule, b.heads_per_group)) +
         (a.stages != b.stages) + (a.tma_store != b.tma_store) + (a.ping_pong != b.ping_pong) +
         (a.q_in_registers != b.q_in_registers) + (a.cluster != b.cluster);
}

bool same_tile(const Sm90aPlan& a, const Sm90aPlan& b) {
  return std::tuple(a.warpgroups, a.tile_kv, a.score_buffers, a.heads, a.pieces) ==
         std::tuple(b.warpgroups, b.tile_kv, b.score_buffers, b.heads, b.pieces);
}

// What makes plans for few queries differ in kind: a race has the cheapest of each.
auto kind_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const auto* decode = std::get_if<DecodePlan>(&plan.tile);
  const Sm90aPlan* tile = hopper(plan);
  if (decode != nullptr) {
    const bool is_exact = decode->in_cluster || !is_packed(spec);
    const int cut = is_exact ? decode->pieces : std::min(decode->pieces, 2);
    return std::tuple(plan.family(), decode->tile_q, decode->warps, cut, decode->stretches,
                      decode->in_cluster);
  }
  if (tile != nullptr)
    return std::tuple(plan.family(), tile->heads, tile->warpgroups, tile->pieces, false, false);
  return std::tuple(plan.family(), 0, 0, 0, false, false);
}

Status list_kinds(const std::string& path) {
  constexpr std::size_t kKinds = 10;
  constexpr double kHopeless = 1.8;
  ATT_TRY(const AttentionSpec spec, spec_of(path));
  const DeviceFacts device = device_facts(Target::kSm90a);
  for (const ProblemShape& shape : spec.tune_shapes) {
    ATT_TRY(const std::vector<KernelPlan> plans, plans_by_cost(spec, shape, device));
    std::set<decltype(kind_of(spec, plans.front()))> kinds;
    const double least = cost_us(spec, plans.front(), shape, device);
    for (const KernelPlan& plan : plans) {
      if (kinds.size() >= kKinds || cost_us(spec, plan, shape, device) > kHopeless * least) break;
      if (!kinds.insert(kind_of(spec, plan)).second) continue;
      report({{"spec", path},
              {"urgency", kinds.size() - 1},
              {"plan", to_string(plan_for_pages(spec, spec.page_size, plan, device))}});
    }
  }
  return ok_status();
}

Status list_candidates(const std::string& path, Pass pass) {
  constexpr std::size_t kTiles = 9;
  constexpr double kHopeless = 1.2;
  ATT_TRY(const AttentionSpec spec, spec_of(path));
  const DeviceFacts device = device_facts(Target::kSm90a);
  std::vector<std::pair<int, KernelPlan>> found;  // by urgency
  for (const ProblemShape& shape : spec.tune_shapes) {
    ATT_TRY(const std::vector<KernelPlan> plans, plans_by_cost(spec, shape, device, pass));
    const KernelPlan& guess = plans.front();
    if (pass == Pass::kBackward) {
      for (int rank = 0; rank < std::min<int>(kTiles, static_cast<int>(plans.size())); ++rank)
        found.emplace_back(rank, plans[static_cast<std::size_t>(rank)]);
      continue;
    }
    found.emplace_back(0, guess);
    const Sm90aPlan* of_guess = hopper(guess);
    if (of_guess == nullptr) continue;
    const double least = cost_us(spec, guess, shape, device);
    std::set<decltype(tile_key(*of_guess))> tiles = {tile_key(*of_guess)};
    int rank = 0;
    for (const KernelPlan& plan : plans) {
      const Sm90aPlan* tile = hopper(plan);
      if (tile == nullptr || tile->frozen_max != of_guess->frozen_max) continue;
      const bool near = same_tile(*tile, *of_guess) && other_parts(*tile, *of_guess) == 1;
      const double cost = cost_us(spec, plan, shape, device);
      if (near) found.emplace_back(4, plan);
      if (tiles.size() < kTiles && cost < kHopeless * least && tiles.insert(tile_key(*tile)).second)
        found.emplace_back(1 + rank++ / 2, plan);
    }
  }
  std::ranges::stable_sort(found, {}, &std::pair<int, KernelPlan>::first);
  std::set<KernelPlan> seen;
  for (const auto& [urgency, plan] : found) {
    if (seen.insert(plan).second)
      report({{"spec", path}, {"urgency", urgency}, {"plan", to_string(plan)}});
  }
  return ok_status();
}

std::vector<Listed> listed(const std::string& path) {
  std::vector<Listed> list;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (auto plan = parse_plan(line.at("plan").get<std::string>()); plan.ok())
      list.emplace_back(line.at("spec"), *plan);
  }
  return list;
}

// What a backward pass is timed behind.
void build_forward(const AttentionSpec& spec, Compiler& compiler, Store& store) {
  for (const ProblemShape& shape : spec.tune_shapes) {
    const auto plan = default_plan(spec, shape, device_facts(Target::kSm90a));
    if (plan.ok()) std::ignore = build(spec, *plan, compiler, &store).ok();
  }
}

Status compile(const std::string& cache, const std::string& list, double budget_s) {
  const double began = now();
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_nvrtc_compiler());
  ATT_TRY(const auto store, open_store(cache));
  const std::vector<Listed> wanted = listed(list);
  std::mutex mutex;
  parallel_for(static_cast<std::int64_t>(wanted.size()), [&](std::int64_t i) {
    if (now() - began > budget_s) return;
    const auto& [path, plan] = wanted[static_cast<std::size_t>(i)];
    const auto spec = spec_of(path);
    if (!spec.ok() || !build(*spec, plan, *compiler, store.get()).ok()) return;
    if (plan.pass == Pass::kBackward) build_forward(*spec, *compiler, *store);
    const std::lock_guard lock(mutex);
    report({{"spec", path}, {"plan", to_string(plan)}});
  });
  return ok_status();
}

// Medians of interleaved rounds; who is far behind leaves after two, who is behind after six.
Result<Json> race(LocalExecutor& executor, std::vector<KernelPlan> plans) {
  constexpr int kRounds = 15;
  std::map<KernelPlan, std::vector<double>> samples;
  const auto median = [&](const KernelPlan& plan) { return spread_of(samples.at(plan)).median; };
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const KernelPlan& plan = plans[(static_cast<std::size_t>(round) + i) % plans.size()];
      ATT_TRY(const double us, executor.time_us(plan));
      samples[plan].push_back(us);
    }
    if (round != 2 && round != 6) continue;
    double best = INFINITY;
    for (const KernelPlan& plan : plans) best = std::min(best, median(plan));
    std::erase_if(plans, [&](const KernelPlan& plan) {
      return median(plan) > best * (round == 2 ? 1.12 : 1.05);
    });
  }
  Json times;
  for (const auto& [plan, of_plan] : samples) times[to_string(plan)] = median(plan);
  return times;
}

Status run(const std::string& cache, const std::string& list, double budget_s) {
  const double began = now();
  ATT_TRY(const std::unique_ptr<Device> device, open_cuda_device(0));
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_nvrtc_compiler());
  ATT_TRY(const auto store, open_store(cache));
  Compiler* const compilers[] = {compiler.get()};
  std::vector<std::string> specs;  // in the order of the list
  std::map<std::string, std::vector<KernelPlan>> plans;
  for (const auto& [path, plan] : listed(list)) {
    if (plans[path].empty()) specs.push_back(path);
    plans[path].push_back(plan);
  }
  for (const std::string& path : specs) {
    ATT_TRY(const AttentionSpec spec, spec_of(path));
    for (const ProblemShape& shape : spec.tune_shapes) {
      if (now() - began > budget_s) {
        fmt::print(stderr, "no time is left for {} {}\n", path, to_string(shape));
        continue;
      }
      LocalExecutor executor(spec, shape, *device, compilers, store.get(), 2,
                             plans.at(path).front().pass);
      const auto times = race(executor, plans.at(path));
      if (!times.ok()) {
        fmt::print(stderr, "{} {}: {}\n", path, to_string(shape), times.error().message);
        continue;
      }
      report({{"spec", path},
              {"shape", to_string(shape)},
              {"seconds", now() - began},
              {"exhaustive", {{"times", *times}}}});
    }
  }
  return ok_status();
}

// `shown`: of the fastest, with what the model says of them.
Status replay(const std::string& path, int shown) {
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    ATT_TRY(const AttentionSpec spec, spec_of(line.at("spec")));
    ATT_TRY(const ProblemShape shape, parse_shape(line.at("shape").get<std::string>()));
    const DeviceFacts device = device_facts(Target::kSm90a);
    std::vector<std::tuple<double, double, KernelPlan>> timed;
    for (const auto& [words, us] : line.at("exhaustive").at("times").items()) {
      if (const auto plan = parse_plan(words); plan.ok())
        timed.emplace_back(us, cost_us(spec, *plan, shape, device), *plan);
    }
    if (timed.empty()) continue;
    const Pass pass = std::get<KernelPlan>(timed.front()).pass;
    ATT_TRY(KernelPlan guess, default_plan(spec, shape, device, pass));
    guess = plan_for_pages(spec, spec.page_size, guess, device);
    std::ranges::sort(timed);
    double guess_us = 0;
    for (const auto& [us, cost, plan] : timed) {
      if (plan == guess) guess_us = us;
    }
    const double best_us = std::get<0>(timed.front());
    fmt::print("{:<28} {:<52} {:7.2f} % {:8.1f} {:8.1f} | {} | {}\n",
               line.at("spec").get<std::string>(), to_string(shape),
               guess_us == 0 ? -1 : 100 * (guess_us / best_us - 1), best_us, guess_us,
               to_string(guess), to_string(std::get<2>(timed.front())));
    for (int i = 0; i < std::min<int>(shown, static_cast<int>(timed.size())); ++i) {
      const auto& [us, cost, plan] = timed[static_cast<std::size_t>(i)];
      fmt::print("    {:8.1f} {:6.3f} model {:8.1f} {}\n", us, us / best_us, cost, to_string(plan));
    }
  }
  return ok_status();
}

Status chosen(const std::vector<std::string>& words) {
  const auto word = [&](std::size_t i) { return i < words.size() ? words[i] : std::string(); };
  if (word(0) == "candidates" || word(0) == "backward") {
    const Pass pass = word(0) == "backward" ? Pass::kBackward : Pass::kForward;
    for (std::size_t i = 1; i < words.size(); ++i) ATT_CHECK(list_candidates(words[i], pass));
    return ok_status();
  }
  if (word(0) == "serving") {
    for (std::size_t i = 1; i < words.size(); ++i) ATT_CHECK(list_kinds(words[i]));
    return ok_status();
  }
  const bool takes_time = word(0) == "compile" || word(0) == "run";
  if (words.size() < (takes_time ? 4 : 2) || (!takes_time && word(0) != "replay"))
    return Error{.id = "usage", .message = "guess_race: its source says at the top what it takes"};
  if (word(0) == "compile") return compile(word(1), word(2), std::stod(word(3)));
  if (word(0) == "run") return run(word(1), word(2), std::stod(word(3)));
  return replay(word(1), words.size() > 2 ? std::stoi(word(2)) : 0);
}

}  // namespace
}  // namespace attune

int main(int argc, char** argv) {
  const attune::Status status = attune::chosen({argv + 1, argv + argc});
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", attune::render(status.error()));
  return 1;
}
