#include "runtime/engine/build_code.hpp"

#include <chrono>
#include <thread>

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
bool take_from(const Store& store, BuiltCode& built) {
  auto found = store.find_code(built.key);
  if (!found.ok() || !found->has_value()) return false;
  built.code = to_kernel(std::move(**found));
  built.from_cache = true;
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

Result<BuiltCode> compile(const SourceToBuild& source, Compiler& compiler) {
  BuiltCode built{.code = {}, .from_cache = false, .key = source.key};
  const GeneratedKernel& generated = source.generated;
  ATT_TRY(built.code, compiler.compile(generated.source, generated.symbol, source.target));
  return built;
}

Result<BuiltCode> compile_and_store(const SourceToBuild& source, Compiler& compiler, Store& store,
                                    double wait_seconds) {
  BuildLease lease(store, "build:" + source.key.digest(), wait_seconds);
  const Clock::time_point start = Clock::now();
  BuiltCode found{.code = {}, .from_cache = false, .key = source.key};
  bool holds = lease.take();
  while (!holds && seconds_since(start) < wait_seconds) {
    // A compile takes a third of a second and more; a fiftieth of that is soon enough.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (take_from(store, found)) return found;
    holds = lease.take();
  }
  // Who held it before may have stored the code since we looked.
  if (holds && take_from(store, found)) return found;
  ATT_TRY(BuiltCode built, compile(source, compiler));
  (void)store.put_code(built.key, to_record(built.code));  // the store counts and reports a failure
  return built;
}

}  // namespace

Result<std::optional<BuiltCode>> find_code(SourceToBuild source, const Compiler* compiler,
                                           const Store& store, const std::string& family) {
  BuiltCode found{.code = {}, .from_cache = false, .key = std::move(source.key)};
  if (compiler != nullptr) {
    found.key.compiler = compiler->identity();
    if (take_from(store, found)) return std::optional(std::move(found));
    return std::optional<BuiltCode>();
  }
  ATT_TRY(const std::vector<BuildKey> stored, store.stored_builds(found.key.spec_hash));
  for (const BuildKey& key : stored) {
    if (!family.empty() && compiler_family(key.compiler) != family) continue;
    found.key.compiler = key.compiler;
    if (key.digest() != found.key.digest()) continue;
    if (take_from(store, found)) return std::optional(std::move(found));
  }
  return std::optional<BuiltCode>();
}

Result<BuiltCode> build_code(SourceToBuild source, Compiler& compiler, Store* store,
                             double wait_seconds) {
  source.key.compiler = compiler.identity();
  if (store == nullptr) return compile(source, compiler);
  BuiltCode found{.code = {}, .from_cache = false, .key = source.key};
  if (take_from(*store, found)) return found;
  return compile_and_store(source, compiler, *store, wait_seconds);
}

}  // namespace attune
