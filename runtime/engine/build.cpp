#include <chrono>
#include <thread>

#include "generator/emit/emit.hpp"
#include "runtime/engine/engine.hpp"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

CompiledKernel to_kernel(CodeRecord&& record) {
  return {.image = std::move(record.image),
          .registers = record.registers,
          .spill_store_bytes = record.spill_store_bytes,
          .spill_load_bytes = record.spill_load_bytes,
          .stack_bytes = record.stack_bytes,
          .static_shared_bytes = record.static_shared_bytes,
          .compile_seconds = record.compile_seconds,
          .log = {}};
}

CodeRecord to_record(const CompiledKernel& code) {
  return {.image = code.image,
          .registers = code.registers,
          .spill_store_bytes = code.spill_store_bytes,
          .spill_load_bytes = code.spill_load_bytes,
          .stack_bytes = code.stack_bytes,
          .static_shared_bytes = code.static_shared_bytes,
          .compile_seconds = code.compile_seconds};
}

// False when there is none or the store does not answer, which it counts itself.
bool take_from(const Store& store, BuiltKernel& kernel) {
  auto found = store.find_code(kernel.key);
  if (!found.ok() || !found->has_value()) return false;
  kernel.code = to_kernel(std::move(**found));
  kernel.from_cache = true;
  return true;
}

// Holds the lease of one build in the store, for as long as the object lives.
class BuildLease {
 public:
  BuildLease(Store& store, std::string name, double seconds)
      : store_(store), name_(std::move(name)), seconds_(seconds) {}
  ~BuildLease() {
    if (held_) (void)store_.give_lease(name_);
  }
  BuildLease(const BuildLease&) = delete;
  BuildLease& operator=(const BuildLease&) = delete;

  // False when another process is at this build. A store that cannot say so lets us build.
  bool take() {
    auto taken = store_.take_lease(name_, seconds_);
    held_ = taken.ok() && *taken;
    return held_ || !taken.ok();
  }

 private:
  Store& store_;
  const std::string name_;
  const double seconds_;
  bool held_ = false;
};

BuildKey key_of(const AttentionSpec& spec, const KernelPlan& plan, const GeneratedKernel& generated,
                std::string compiler) {
  return {.spec_hash = spec_hash(spec),
          .plan = to_string(plan),
          .body_hash = generated.body_hash,
          .compiler = std::move(compiler),
          .target = std::string(to_string(plan.target)),
          .spec_text = canonical_text(spec)};
}

Result<BuiltKernel> compile(BuiltKernel kernel, const GeneratedKernel& generated,
                            Compiler& compiler) {
  ATT_TRY(kernel.code, compiler.compile(generated.source, generated.symbol, kernel.plan.target));
  return kernel;
}

Result<BuiltKernel> compile_and_store(BuiltKernel kernel, const GeneratedKernel& generated,
                                      Compiler& compiler, Store& store, double wait_seconds) {
  BuildLease lease(store, "build:" + kernel.key.digest(), wait_seconds);
  const Clock::time_point start = Clock::now();
  bool holds = lease.take();
  while (!holds && seconds_since(start) < wait_seconds) {
    // A compile takes a third of a second and more; a fiftieth of that is soon enough.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (take_from(store, kernel)) return kernel;
    holds = lease.take();
  }
  // Who held it before may have stored the code since we looked.
  if (holds && take_from(store, kernel)) return kernel;
  ATT_TRY(BuiltKernel built, compile(std::move(kernel), generated, compiler));
  (void)store.put_code(built.key, to_record(built.code));  // the store counts and reports a failure
  return built;
}

}  // namespace

Result<BuildKey> build_key(const AttentionSpec& spec, const KernelPlan& plan,
                           const Compiler& compiler) {
  ATT_TRY(const GeneratedKernel generated, emit(spec, plan));
  return key_of(spec, plan, generated, compiler.identity());
}

Result<std::optional<BuiltKernel>> find_built(const AttentionSpec& spec, const KernelPlan& plan,
                                              const Compiler* compiler, const Store& store,
                                              const std::string& family) {
  const Clock::time_point start = Clock::now();
  ATT_TRY(const GeneratedKernel generated, emit(spec, plan));
  BuiltKernel kernel{
      .plan = plan,
      .code = {},
      .from_cache = false,
      .emit_seconds = seconds_since(start),
      .symbol = generated.symbol,
      .key = key_of(spec, plan, generated, compiler == nullptr ? "" : compiler->identity())};
  if (compiler != nullptr) {
    if (take_from(store, kernel)) return std::optional(std::move(kernel));
    return std::optional<BuiltKernel>();
  }
  ATT_TRY(const std::vector<BuildKey> stored, store.stored_builds(kernel.key.spec_hash));
  for (const BuildKey& key : stored) {
    if (!family.empty() && compiler_family(key.compiler) != family) continue;
    kernel.key.compiler = key.compiler;
    if (key.digest() != kernel.key.digest()) continue;
    if (take_from(store, kernel)) return std::optional(std::move(kernel));
  }
  return std::optional<BuiltKernel>();
}

Result<BuiltKernel> build(const AttentionSpec& spec, const KernelPlan& plan, Compiler& compiler,
                          Store* store, double wait_seconds) {
  const Clock::time_point start = Clock::now();
  ATT_TRY(const GeneratedKernel generated, emit(spec, plan));
  BuiltKernel kernel{.plan = plan,
                     .code = {},
                     .from_cache = false,
                     .emit_seconds = seconds_since(start),
                     .symbol = generated.symbol,
                     .key = key_of(spec, plan, generated, compiler.identity())};
  if (store == nullptr) return compile(std::move(kernel), generated, compiler);
  if (take_from(*store, kernel)) return kernel;
  return compile_and_store(std::move(kernel), generated, compiler, *store, wait_seconds);
}

}  // namespace attune
