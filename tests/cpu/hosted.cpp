#include "tests/cpu/hosted.hpp"

#include "runtime/engine/engine.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tuner/search/seeds.hpp"

namespace hosted {
namespace {

using namespace attune;

constexpr ProblemShape kShape{
    .batch = 1, .heads = kHeads, .kv_heads = 1, .q_len = kLength, .kv_len = kLength};

}  // namespace

std::string missing() {
  if (const auto compiler = open_llvm_compiler(); !compiler.ok()) return compiler.error().message;
  const auto device = open_cpu_device();
  return device.ok() ? "" : device.error().message;
}

std::vector<std::string> first_plans(bool backward) {
  const auto spec = parse_spec(kYaml, "");
  const auto device = open_cpu_device();
  std::vector<std::string> texts;
  for (const KernelPlan& plan : search_seeds(*plans_by_cost(
           *spec, kShape, (*device)->facts(), backward ? Pass::kBackward : Pass::kForward))) {
    texts.push_back(to_string(plan));
  }
  return texts;
}

struct CacheFile::Directory : cache_testing::TemporaryDirectory {};
CacheFile::CacheFile() : directory_(std::make_unique<Directory>()) {}
CacheFile::~CacheFile() = default;
std::string CacheFile::path() const { return directory_->file(); }

std::vector<Kind> CacheFile::kinds() const {
  const auto spec = parse_spec(kYaml, "");
  const auto device = open_cpu_device();
  const auto store = open_store(path());
  const auto winner = (*store)->winner({.spec_hash = spec_hash(*spec),
                                        .device = (*device)->identity(),
                                        .shape = kShape,
                                        .protocol = std::string(kMeasurementProtocol),
                                        .spec_text = canonical_text(*spec)});
  std::vector<Kind> kinds;
  if (!winner.ok() || !winner->has_value()) return kinds;
  for (const DataPlans& kind : (*winner)->by_data)
    kinds.push_back({kind.data.live, kind.data.full});
  return kinds;
}

}  // namespace hosted
