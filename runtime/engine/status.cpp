#include "runtime/engine/status.hpp"

#include "runtime/support/json.hpp"

namespace attune {
namespace {

Json describe(const ProblemShape& shape) {
  return {{"batch", shape.batch},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"q_len", shape.q_len},
          {"kv_len", shape.kv_len}};
}

const char* state_of(const LayerStatus& layer) {
  if (!layer.usable) {
    if (layer.problem_id == "cache-absent") return "missing";
    if (layer.problem_id == "cache-locked") return "locked";
    return "unusable";
  }
  if (layer.health.set_aside > 0) return "set aside";
  return layer.read_only || !layer.health.not_written.empty() ? "read-only" : "ok";
}

Json describe(const LayerStatus& layer) {
  Json json = {{"path", layer.path}, {"state", state_of(layer)}};
  if (!layer.usable) {
    json.set("problem", layer.problem);
    json.set("problem_id", layer.problem_id);
  }
  json.set("read_only", layer.read_only);
  json.set("problems_known", layer.problems_known);
  json.set("damaged_rows", layer.health.damaged_rows);
  json.set("set_aside", layer.health.set_aside);
  json.set("failed_reads", layer.health.failed_reads);
  json.set("failed_writes", layer.health.failed_writes);
  json.set("network", layer.health.network);
  if (!layer.health.code_refused.empty()) json.set("code_refused", layer.health.code_refused);
  if (!layer.health.not_written.empty()) json.set("not_written", layer.health.not_written);
  if (!layer.health.last_warning.empty()) json.set("last_warning", layer.health.last_warning);
  return json;
}

Json describe(const KernelEntry& entry) {
  const KernelVersion& version = entry.version();
  const PlanChoice& choice = version.choice;
  Json json = {{"spec", entry.spec().name},          {"spec_hash", spec_hash(entry.spec())},
               {"shape", describe(entry.key.shape)}, {"plan", version.plan},
               {"source", to_string(choice.source)}, {"compiler", version.code.compiler}};
  if (!choice.compiler.empty() && choice.compiler != version.code.compiler)
    json.set("measured_with", choice.compiler);
  if (!choice.file.empty()) {
    json.set("file", choice.file);
    json.set("measured_shape", describe(choice.measured_shape));
  }
  json.set("hits", entry.hits());
  json.set("fallback_launches", entry.fallback_launches());
  Json failed_plans = Json::array();
  for (const FailedPlan& failed : entry.failed_plans()) {
    failed_plans.push_back({{"plan", failed.plan}, {"reason", failed.reason}});
  }
  if (!failed_plans.empty()) json.set("failed_plans", std::move(failed_plans));
  return json;
}

Json describe_compiler(Workshop& workshop) {
  const auto compiler = workshop.compiler(workshop.device().facts().target);
  if (compiler.ok()) return {{"identity", (*compiler)->identity()}};
  return {{"missing", compiler.error().message}, {"hint", compiler.error().hint}};
}

}  // namespace

const char* to_string(PlanSource source) {
  switch (source) {
    case PlanSource::kMeasured:
      return "measured";
    case PlanSource::kNearestBucket:
      return "nearest";
    case PlanSource::kStandIn:
      return "stand-in";
    case PlanSource::kCostModel:
      break;
  }
  return "model";
}

std::string status_json(const Dispatcher& dispatcher) {
  Workshop& workshop = dispatcher.workshop();
  Json layers = Json::array();
  int failed_reads = 0, failed_writes = 0;
  for (const LayerStatus& layer : workshop.cache().layers()) {
    layers.push_back(describe(layer));
    failed_reads += layer.health.failed_reads;
    failed_writes += layer.health.failed_writes;
  }
  Json kernels = Json::array();
  std::uint64_t hits = 0, fallback_launches = 0;
  dispatcher.for_each([&](const KernelEntry& entry) {
    kernels.push_back(describe(entry));
    hits += entry.hits();
    fallback_launches += entry.fallback_launches();
  });
  const WorkshopCounters& code = workshop.counters();
  const DispatcherCounters& counters = dispatcher.counters();
  const Json status = {
      {"device",
       {{"identity", workshop.device().identity()},
        {"target", to_string(workshop.device().facts().target)}}},
      {"compiler", describe_compiler(workshop)},
      {"cache", std::move(layers)},
      {"background", {{"enabled", dispatcher.background()}, {"pending", dispatcher.pending()}}},
      {"check", workshop.checks_launches()},
      {"counters",
       {{"hits", hits},
        {"misses", counters.misses.load()},
        {"compiles", code.compiles.load()},
        {"failed_compiles", code.failed_compiles.load()},
        {"from_cache", code.from_cache.load()},
        {"from_cache_without_compiler", code.from_cache_without_compiler.load()},
        {"stand_ins", counters.stand_ins.load()},
        {"replacements", counters.replacements.load()},
        {"failed_replacements", counters.failed_replacements.load()},
        {"refreshes", counters.refreshes.load()},
        {"fallback_launches", fallback_launches},
        {"store_failures", failed_reads + failed_writes}}},
      {"kernels", std::move(kernels)}};
  return status.dump(2);
}

}  // namespace attune
