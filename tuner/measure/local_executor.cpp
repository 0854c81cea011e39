#include "tuner/measure/local_executor.hpp"

#include <fmt/format.h>

namespace attune {
namespace {

Error device_lost() {
  return {.kind = ErrorKind::kFailed,
          .id = "device-lost",
          .message = "a kernel faulted and took the device's context along",
          .hint = "run the same command again: the culprit is remembered and left out"};
}

}  // namespace

LocalExecutor::LocalExecutor(const AttentionSpec& spec, const ProblemShape& shape, Device& device,
                             std::span<Compiler* const> compilers, Store* store, std::uint64_t seed,
                             Pass pass, const GivenLaunch* launch)
    : spec_(spec),
      device_(device),
      compilers_(compilers.begin(), compilers.end()),
      store_(store),
      problems_(
          make_problems(pass, {spec, shape, device, *compilers.front(), store, seed, launch})) {}

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
  ATT_CHECK(make_timed());
  ATT_CHECK(problems_->checks());
  return ok_status();
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
  lost_ = !device_.synchronize().ok() || !device_.copy_to_host(&byte, timed_->input(), 1).ok();
  return candidate_error(lost_ ? "fault" : reason, status.error().message, status.error().detail);
}

Result<Verdict> LocalExecutor::verdict(const LoadedKernel& kernel, Check& check) {
  ATT_CHECK(check.problem().poison());
  ATT_CHECK(judged(check.problem().launch(kernel, nullptr), "launch"));
  ATT_CHECK(judged(device_.synchronize(), "fault"));
  return check.judge();
}

Status LocalExecutor::verify(const Candidate& candidate) {
  ATT_TRY(const LoadedKernel* kernel, loaded(candidate));
  ATT_CHECK(make_timed());
  ATT_TRY(const std::vector<Check*> checks, problems_->checks());
  for (Check* const check : checks) {
    ATT_TRY(const Verdict first, verdict(*kernel, *check));
    if (first.wrong.empty()) continue;
    const std::string at = "at " + to_string(check->shape());
    const auto another = check->another();
    if (!another.ok())
      return candidate_error("doubtful", first.wrong, at + "; no memory for another");
    ATT_TRY(const Verdict second, verdict(*kernel, **another));
    if (second.wrong.empty()) {
      return candidate_error("doubtful", first.wrong, at + "; on other numbers it was right");
    }
    return candidate_error("miscompute", first.wrong,
                           at + ", on other numbers too: " + second.wrong);
  }
  return ok_status();
}

Status LocalExecutor::make_timed() {
  if (timed_ != nullptr) return ok_status();
  // Writing twice the L2 leaves nothing of the inputs in it.
  ATT_TRY(flush_,
          DeviceBuffer::make(device_, 2 * static_cast<std::size_t>(device_.facts().l2_bytes)));
  ATT_TRY(timed_, problems_->timed());
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
