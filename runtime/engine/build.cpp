#include <chrono>

#include "generator/emit/emit.hpp"
#include "runtime/engine/build_code.hpp"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

// `compiler`: its identity; may be empty.
BuildKey key_of(const AttentionSpec& spec, const KernelPlan& plan, const GeneratedKernel& generated,
                std::string compiler) {
  return {.spec_hash = spec_hash(spec),
          .plan = to_string(plan),
          .body_hash = generated.body_hash,
          .compiler = std::move(compiler),
          .target = std::string(to_string(plan.target)),
          .spec_text = canonical_text(spec)};
}

// A spec and plan as source, and how long that took.
struct Emitted {
  GeneratedKernel generated;
  double seconds = 0;
};
Result<Emitted> emitted(const AttentionSpec& spec, const KernelPlan& plan) {
  const Clock::time_point start = Clock::now();
  Emitted result;
  ATT_TRY(result.generated, emit(spec, plan));
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

BuiltKernel kernel_of(const KernelPlan& plan, const Emitted& source, BuiltCode&& built) {
  return {.plan = plan,
          .code = std::move(built.code),
          .from_cache = built.from_cache,
          .emit_seconds = source.seconds,
          .symbol = source.generated.symbol,
          .key = std::move(built.key)};
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
  ATT_TRY(const Emitted source, emitted(spec, plan));
  ATT_TRY(std::optional<BuiltCode> found,
          find_code({source.generated, plan.target, key_of(spec, plan, source.generated, "")},
                    compiler, store, family));
  if (!found) return std::optional<BuiltKernel>();
  return std::optional(kernel_of(plan, source, std::move(*found)));
}

Result<BuiltKernel> build(const AttentionSpec& spec, const KernelPlan& plan, Compiler& compiler,
                          Store* store, double wait_seconds) {
  ATT_TRY(const Emitted source, emitted(spec, plan));
  ATT_TRY(BuiltCode built,
          build_code({source.generated, plan.target, key_of(spec, plan, source.generated, "")},
                     compiler, store, wait_seconds));
  return kernel_of(plan, source, std::move(built));
}

}  // namespace attune
