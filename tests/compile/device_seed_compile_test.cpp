// Kernels that read dropout's seed in device memory beside those that take it at launch, compiled
// by NVRTC for GPUs that need not be here: the same tiles, and hardly another register.
#include <gtest/gtest.h>

#include <utility>

#include "generator/emit/emit.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune {
namespace {

constexpr ProblemShape kShape{
    .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
constexpr int kSpillCeilingBytes = 16;  // beyond those of the other

AttentionSpec spec_of(const std::string& lines, const char* dropout) {
  auto spec =
      parse_spec("attune: 1\nname: t\nmask: causal\n" + lines + "dropout: " + dropout + "\n", "t");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return *spec;
}

TEST(CompileDeviceSeed, TakesTheSamePlansInAboutAsManyRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  for (const auto& [lines, target] : {std::pair{"dtype: bf16\nhead_dim: 64\n", Target::kSm90a},
                                      {"dtype: fp16\nhead_dim: 128\n", Target::kSm80},
                                      {"dtype: fp32\nhead_dim: 64\n", Target::kSm80}}) {
    if (!(*compiler)->supports(target)) continue;
    const AttentionSpec of_launch = spec_of(lines, "0.1");
    const AttentionSpec of_device = spec_of(lines, "{p: 0.1, seed: device}");
    for (const Pass pass : kPasses) {
      const DeviceFacts facts = device_facts(target);
      const auto plan = default_plan(of_launch, kShape, facts, pass);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      EXPECT_EQ(default_plan(of_device, kShape, facts, pass).value(), *plan);
      const auto compiled = [&](const AttentionSpec& spec) {
        const auto source = emit(spec, *plan);
        EXPECT_TRUE(source.ok()) << render(source.error());
        const auto kernel = (*compiler)->compile(source->source, source->symbol, plan->target);
        EXPECT_TRUE(kernel.ok()) << to_string(*plan) << "\n" << render(kernel.error());
        return *kernel;
      };
      const CompiledKernel wanted = compiled(of_launch), found = compiled(of_device);
      const std::string what = to_string(*plan) + "\n" + found.log;
      EXPECT_LE(found.spill_load_bytes, wanted.spill_load_bytes + kSpillCeilingBytes) << what;
      EXPECT_LE(found.registers, wanted.registers + 16) << what;
      EXPECT_EQ(found.log.find("(C75"), std::string::npos) << what;
    }
  }
}

}  // namespace
}  // namespace attune
