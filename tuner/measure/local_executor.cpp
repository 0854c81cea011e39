#include "tuner/measure/local_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace attune {
namespace {

// Pairs of a query and a key that an oracle may work out for one problem beyond a row of every 16
// queries: a quarter of a second of two cores, half a second of an H200.
constexpr std::int64_t kPairsOnHost = std::int64_t{1} << 21;
constexpr std::int64_t kPairsOnDevice = std::int64_t{1} << 31;
// Elements of O that the GPU's oracle keeps at most, at 8 bytes each, likewise.
constexpr std::int64_t kElementsOnDevice = std::int64_t{1} << 27;
// Added to a seed for the problem that confirms a verdict.
constexpr std::uint64_t kAnother = 0x9e3779b97f4a7c15;
constexpr std::int64_t kCheckedHeads = 2;  // of keys
constexpr std::int64_t kCheckedBatch = 2;
// Neither a multiple of any tile nor of each other; one tile and a bit, and three tiles and a bit.
constexpr std::int64_t kRaggedQueries = 193, kRaggedKeys = 331;

Error device_lost() {
  return {.kind = ErrorKind::kFailed,
          .id = "device-lost",
          .message = "a kernel faulted and took the device's context along",
          .hint = "run the same command again: the culprit is remembered and left out"};
}

}  // namespace

struct LocalExecutor::Check {
  ProblemShape shape;
  DeviceProblem* problem = nullptr;  // `own` or the timed one
  std::unique_ptr<DeviceProblem> own;
  std::function<Result<Verdict>()> judge;  // what a launch left in the problem's outputs
  std::function<Result<std::unique_ptr<Check>>()> make_another;  // problem of this shape
  std::unique_ptr<Check> another;                                // when it was needed once
};

std::vector<ProblemShape> verification_shapes(const ProblemShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  ProblemShape reduced = shape;
  reduced.batch = std::min(shape.batch, kCheckedBatch);
  reduced.kv_heads = std::min(shape.kv_heads, kCheckedHeads);
  reduced.heads = reduced.kv_heads * group;
  ProblemShape ragged = reduced;
  const bool square = shape.q_len == shape.kv_len;
  ragged.q_len = std::min(shape.q_len, square ? kRaggedKeys : kRaggedQueries);
  ragged.kv_len = std::min(shape.kv_len, kRaggedKeys);
  if (ragged == reduced) return {reduced};
  return {reduced, ragged};
}

LocalExecutor::LocalExecutor(const AttentionSpec& spec, const ProblemShape& shape, Device& device,
                             std::span<Compiler* const> compilers, Store* store, std::uint64_t seed)
    : spec_(spec),
      shape_(shape),
      device_(device),
      compilers_(compilers.begin(), compilers.end()),
      store_(store),
      seed_(seed) {}

LocalExecutor::~LocalExecutor() = default;

Result<std::string> candidate_build_digest(const AttentionSpec& spec, const KernelPlan& plan,
                                           const Compiler& compiler) {
  auto key = build_key(spec, plan, compiler);
  if (!key.ok()) return candidate_error("compile", key.error().message, key.error().detail);
  return key->digest();
}

Result<CompiledFacts> compile_candidate(const AttentionSpec& spec, const KernelPlan& plan,
                                        Compiler& compiler, Store* store,
                                        std::vector<std::uint8_t>* image) {
  auto built = build(spec, plan, compiler, store);
  if (!built.ok()) {
    if (built.error().kind == ErrorKind::kUnavailable) return built.error();
    return candidate_error("compile", built.error().message, built.error().detail);
  }
  if (image != nullptr) *image = std::move(built->code.image);
  const LaunchRecipe recipe = launch_recipe(spec, plan);
  const Launch& main = recipe.main();
  return CompiledFacts{.build_digest = built->key.digest(),
                       .compiler = built->key.compiler,
                       .threads = main.threads,
                       .registers = built->code.registers,
                       .shared_bytes = main.shared_memory_bytes + built->code.static_shared_bytes,
                       .compile_seconds = built->from_cache ? 0 : built->code.compile_seconds};
}

Result<std::string> LocalExecutor::build_digest(const Candidate& candidate) {
  return candidate_build_digest(spec_, candidate.plan, compiler_of(candidate));
}

Result<CompiledFacts> LocalExecutor::compile(const Candidate& candidate) {
  std::vector<std::uint8_t> image;
  ATT_TRY(CompiledFacts facts,
          compile_candidate(spec_, candidate.plan, compiler_of(candidate), store_, &image));
  const std::lock_guard lock(mutex_);
  images_[candidate] = std::move(image);
  return facts;
}

Status LocalExecutor::prepare() {
  ATT_CHECK(make_checks());
  return make_timed();
}

Status LocalExecutor::make_checks() {
  if (!checks_.empty()) return ok_status();
  std::vector<ProblemShape> shapes = verification_shapes(shape_);
  std::vector<std::unique_ptr<Check>> checks;
  ATT_CHECK(make_timed());
  // Where the GPU's oracle works, the shape itself is checked, with the numbers that are timed.
  if (auto oracle = DeviceOracle::make(device_, *compilers_.front(), spec_); oracle.ok()) {
    oracle_ = std::move(*oracle);
    if (auto whole = check_on_device(nullptr, seed_); whole.ok()) {
      checks.push_back(std::move(*whole));
      if (shapes.size() > 1) shapes.erase(shapes.begin());
    }
  }
  std::uint64_t seed = seed_;
  for (const ProblemShape& shape : shapes) {
    ATT_TRY(auto check, check_on_host(shape, seed++));
    checks.push_back(std::move(check));
  }
  checks_ = std::move(checks);
  return ok_status();
}

Result<std::unique_ptr<LocalExecutor::Check>> LocalExecutor::check_on_device(
    std::unique_ptr<DeviceProblem> own, std::uint64_t seed) {
  auto check = std::make_unique<Check>();
  check->shape = shape_;
  check->own = std::move(own);
  check->problem = check->own ? check->own.get() : timed_.get();
  const std::int64_t pairs =
      std::min(kPairsOnDevice, kElementsOnDevice / spec_.head_dim_v * shape_.kv_len);
  ATT_TRY(DeviceOracle::Answer answer,
          oracle_->answer(check->problem->params(), stratified_rows(shape_, pairs, seed)));
  check->judge = [this, problem = check->problem, answer = std::move(answer)]() -> Result<Verdict> {
    ATT_CHECK(problem->check_canaries());
    return oracle_->judge(answer, problem->params());
  };
  check->make_another = [this, seed = seed + kAnother]() -> Result<std::unique_ptr<Check>> {
    ATT_TRY(auto fresh, DeviceProblem::for_timing(device_, spec_, shape_, seed));
    return check_on_device(std::move(fresh), seed);
  };
  return check;
}

Result<std::unique_ptr<LocalExecutor::Check>> LocalExecutor::check_on_host(
    const ProblemShape& shape, std::uint64_t seed) {
  auto check = std::make_unique<Check>();
  const HostProblem problem = random_problem(spec_, shape, seed);
  check->shape = shape;
  const auto rows = stratified_rows(shape, kPairsOnHost, seed);
  ATT_TRY(check->own, DeviceProblem::upload(device_, spec_, problem));
  check->problem = check->own.get();
  check->judge = [on_device = check->problem, rows,
                  oracle =
                      oracle_forward(spec_, problem, rows,
                                     arithmetic_of(device_.facts().target))]() -> Result<Verdict> {
    ATT_TRY(const HostOutput out, on_device->download(rows));
    return compare(out, oracle);
  };
  check->make_another = [this, shape, seed] { return check_on_host(shape, seed + kAnother); };
  return check;
}

Result<const LoadedKernel*> LocalExecutor::loaded(const Candidate& candidate) {
  if (lost_) return device_lost();
  auto at = kernels_.find(candidate);
  if (at == kernels_.end()) {
    std::vector<std::uint8_t> image;
    {
      const std::lock_guard lock(mutex_);
      image = std::move(images_[candidate]);
      images_.erase(candidate);
    }
    if (image.empty()) {
      auto built = build(spec_, candidate.plan, compiler_of(candidate), store_);
      if (!built.ok())
        return candidate_error("compile", built.error().message, built.error().detail);
      image = std::move(built->code.image);
    }
    auto kernel = device_.load(spec_, candidate.plan, image);
    if (!kernel.ok())
      return candidate_error("launch", kernel.error().message, kernel.error().detail);
    at = kernels_.emplace(candidate, std::move(*kernel)).first;
  }
  return at->second.get();
}

Status LocalExecutor::judged(Status status, const char* reason) {
  if (status.ok() || !rejection_reason(status.error()).empty()) return status;
  // A context that a kernel broke answers everything with an error from then on.
  std::uint8_t byte = 0;
  lost_ = !device_.synchronize().ok() || !device_.copy_to_host(&byte, timed_->params().q, 1).ok();
  return candidate_error(lost_ ? "fault" : reason, status.error().message, status.error().detail);
}

Result<Verdict> LocalExecutor::verdict(const LoadedKernel& kernel, Check& check) {
  ATT_CHECK(check.problem->poison());
  ATT_CHECK(judged(check.problem->launch(kernel, nullptr), "launch"));
  ATT_CHECK(judged(device_.synchronize(), "fault"));
  return check.judge();
}

Status LocalExecutor::verify(const Candidate& candidate) {
  ATT_TRY(const LoadedKernel* kernel, loaded(candidate));
  ATT_CHECK(make_checks());
  for (const auto& check : checks_) {
    ATT_TRY(const Verdict first, verdict(*kernel, *check));
    if (first.wrong.empty()) continue;
    const std::string at = "at " + to_string(check->shape);
    if (!check->another) {
      auto made = check->make_another();
      if (!made.ok())
        return candidate_error("doubtful", first.wrong, at + "; no memory for another");
      check->another = *std::move(made);
    }
    ATT_TRY(const Verdict second, verdict(*kernel, *check->another));
    if (second.wrong.empty()) {
      return candidate_error("doubtful", first.wrong, at + "; on other numbers it was right");
    }
    return candidate_error("miscompute", first.wrong,
                           at + ", on other numbers too: " + second.wrong);
  }
  return ok_status();
}

Status LocalExecutor::make_timed() {
  if (timed_) return ok_status();
  // Writing twice the L2 leaves nothing of the inputs in it.
  ATT_TRY(flush_,
          DeviceBuffer::make(device_, 2 * static_cast<std::size_t>(device_.facts().l2_bytes)));
  ATT_TRY(timed_, DeviceProblem::for_timing(device_, spec_, shape_, kTimedSeed));
  return ok_status();
}

Result<double> LocalExecutor::time_us(const Candidate& candidate) {
  ATT_TRY(const LoadedKernel* kernel, loaded(candidate));
  ATT_CHECK(make_timed());
  ATT_CHECK(judged(timed_->prepare(*kernel), "launch"));
  if (flush_.bytes() > 0) ATT_CHECK(device_.fill(flush_.data(), 0, flush_.bytes()));
  const Result<double> time =
      device_.time_us([&](StreamHandle stream) { return timed_->launch(*kernel, stream); });
  if (!time.ok()) {
    ATT_CHECK(judged(Status(time.error()), "launch"));
  }
  return time;
}

void LocalExecutor::release(const Candidate& candidate) {
  kernels_.erase(candidate);
  const std::lock_guard lock(mutex_);
  images_.erase(candidate);
}

}  // namespace attune
