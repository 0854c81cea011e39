#include "tests/cpu/hosted.hpp"

#include "runtime/engine/engine.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tuner/search/seeds.hpp"

namespace hosted {
namespace {

using namespace attune;

constexpr ProblemShape kShape{
    .batch = 1, .heads = kHeads, .kv_heads = 1, .q_len = kLength, .kv_len = kLength};

std::vector<std::string> texts_of(const std::string& yaml, const ProblemShape& shape, Pass pass) {
  const auto spec = parse_spec(yaml, "");
  const auto device = open_cpu_device();
  std::vector<std::string> texts;
  for (const KernelPlan& plan :
       search_seeds(*plans_by_cost(*spec, shape, (*device)->facts(), pass)))
    texts.push_back(to_string(plan));
  return texts;
}

// What was measured on.
std::vector<MaskData> data_in(const std::string& path, const std::string& yaml,
                              const ProblemShape& shape) {
  const auto spec = parse_spec(yaml, "");
  const auto device = open_cpu_device();
  const auto store = open_store(path);
  const auto winner = (*store)->winner({.spec_hash = spec_hash(*spec),
                                        .device = (*device)->identity(),
                                        .shape = shape,
                                        .protocol = std::string(kMeasurementProtocol),
                                        .spec_text = canonical_text(*spec)});
  std::vector<MaskData> kinds;
  if (!winner.ok() || !winner->has_value()) return kinds;
  for (const DataPlans& kind : (*winner)->by_data) kinds.push_back(kind.data);
  return kinds;
}

}  // namespace

std::string missing() {
  if (const auto compiler = open_llvm_compiler(); !compiler.ok()) return compiler.error().message;
  const auto device = open_cpu_device();
  return device.ok() ? "" : device.error().message;
}

std::vector<std::string> first_plans(bool backward) {
  return texts_of(kYaml, kShape, backward ? Pass::kBackward : Pass::kForward);
}

std::vector<std::string> first_plans(const std::string& yaml, std::int64_t batch,
                                     std::int64_t heads, std::int64_t kv_heads, std::int64_t q_len,
                                     std::int64_t kv_len) {
  return texts_of(yaml, {batch, heads, kv_heads, q_len, kv_len}, Pass::kForward);
}

struct CacheFile::Directory : cache_testing::TemporaryDirectory {};
CacheFile::CacheFile() : directory_(std::make_unique<Directory>()) {}
CacheFile::~CacheFile() = default;
std::string CacheFile::path() const { return directory_->file(); }

std::vector<Kind> CacheFile::kinds() const {
  std::vector<Kind> kinds;
  for (const MaskData& data : data_in(path(), kYaml, kShape))
    kinds.push_back({data.live, data.full});
  return kinds;
}

std::vector<LengthKind> CacheFile::length_kinds(const std::string& yaml, std::int64_t batch,
                                                std::int64_t heads, std::int64_t kv_heads,
                                                std::int64_t q_len, std::int64_t kv_len) const {
  std::vector<LengthKind> kinds;
  for (const MaskData& data : data_in(path(), yaml, {batch, heads, kv_heads, q_len, kv_len}))
    kinds.push_back({data.lengths.longest, data.lengths.filled, data.lengths.page_size});
  return kinds;
}

}  // namespace hosted
