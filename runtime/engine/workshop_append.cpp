// Kernels that append to a cache: emitted, built and loaded as those of plans are, once each.
#include "generator/emit/append.hpp"
#include "runtime/engine/build_code.hpp"
#include "runtime/engine/workshop.hpp"

namespace attune {
namespace {

SourceToBuild source_of(const AppendKernel& kernel, const GeneratedKernel& generated) {
  const std::string text = to_string(kernel);
  return {generated, kernel.target,
          BuildKey{.spec_hash = text_hash(text),
                   .plan = text,
                   .body_hash = generated.body_hash,
                   .compiler = {},
                   .target = std::string(to_string(kernel.target)),
                   .spec_text = text}};
}

}  // namespace

Result<BuiltCode> Workshop::build_source(const SourceToBuild& source) {
  const auto compiler = this->compiler(source.target);
  if (compiler.ok()) {
    auto built = build_code(source, **compiler, cache_.get());
    if (!built.ok()) ++counters_.failed_compiles;
    if (built.ok()) ++(built->from_cache ? counters_.from_cache : counters_.compiles);
    return built;
  }
  if (compiler.error().kind != ErrorKind::kUnavailable) return compiler.error();
  auto found = find_code(source, nullptr, *cache_);
  if (found.ok() && found->has_value()) {
    ++counters_.from_cache;
    ++counters_.from_cache_without_compiler;
    return *std::move(*found);
  }
  Error missing = compiler.error();
  missing.message += "; and no cache file has the code of `" + source.key.plan + "`";
  return missing;
}

Result<std::shared_ptr<LoadedFunction>> Workshop::load_append(AppendKernel kernel) {
  kernel.target = device_->target();
  ATT_CHECK(check(kernel));
  using Loaded = Result<std::shared_ptr<LoadedFunction>>;
  return functions_.get(to_string(kernel), [&]() -> Loaded {
    ATT_TRY(const GeneratedKernel generated, emit_append(kernel));
    const SourceToBuild source = source_of(kernel, generated);
    const AppendRecipe recipe = append_recipe(kernel);
    const auto load = [&](const BuiltCode& built) -> Loaded {
      ATT_TRY(std::unique_ptr<LoadedFunction> loaded,
              device_->load_function({recipe.symbol, recipe.threads}, built.code.image));
      return std::shared_ptr<LoadedFunction>(std::move(loaded));
    };
    ATT_TRY(const BuiltCode built, build_source(source));
    auto loaded = load(built);
    if (loaded.ok() || !built.from_cache) return loaded;
    // Stored under another driver, perhaps, or not what it says it is.
    const auto compiler = this->compiler(source.target);
    if (!compiler.ok()) return loaded;
    const auto afresh = build_code(source, **compiler, nullptr);
    ++(afresh.ok() ? counters_.compiles : counters_.failed_compiles);
    return afresh.ok() ? load(*afresh) : loaded;
  });
}

}  // namespace attune
