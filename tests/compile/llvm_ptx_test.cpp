// Every spec of the library through Clang to PTX, for every GPU family: the text that NVRTC takes,
// and what the instructions in it must be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr ProblemShape kShape{
    .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};

// One value a target; a test a target keeps each within the time limit.
class LlvmPtx : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    auto opened = open_llvm_compiler();
    if (!opened.ok()) GTEST_SKIP() << opened.error().message;
    if (opened.value()->identity().find("driver") != std::string::npos) {
      GTEST_SKIP() << "the driver turns PTX into a cubin here";
    }
    compiler_ = std::move(opened).value();
  }

  // The cost model's best plan of the family.
  static KernelPlan best_plan(const AttentionSpec& spec, Family family, const DeviceFacts& facts) {
    const std::vector<KernelPlan> plans = legal_plans(spec, family, facts);
    KernelPlan best = plans.front();
    for (const KernelPlan& plan : plans) {
      if (cost_us(spec, plan, kShape, facts) < cost_us(spec, best, kShape, facts)) best = plan;
    }
    return best;
  }

  void check(const AttentionSpec& spec, const KernelPlan& plan) {
    SCOPED_TRACE(to_string(plan));
    const auto generated = emit(spec, plan);
    ASSERT_TRUE(generated.ok()) << render(generated.error());
    const auto kernel = compiler_->compile(generated->source, generated->symbol, plan.target);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error()).substr(0, 2000);
    const std::string ptx(kernel->image.begin(), kernel->image.end());
    EXPECT_THAT(ptx, HasSubstr(".target " + std::string(to_string(plan.target)) + "\n"));
    EXPECT_THAT(ptx, HasSubstr(".visible .entry " + generated->symbol + "("));
    EXPECT_THAT(ptx, HasSubstr("ex2.approx.ftz.f32"));
    EXPECT_THAT(ptx, HasSubstr(plan.family() == Family::kSm90a ? "wgmma.mma_async.sync.aligned"
                                                               : "mma.sync.aligned.m16n8k16"));
    // A call or a local array means that a tile body stayed out of line or out of registers.
    EXPECT_THAT(ptx, Not(HasSubstr("call.uni")));
    EXPECT_THAT(ptx, Not(HasSubstr("__local_depot")));
  }

  std::unique_ptr<Compiler> compiler_;
};

TEST_P(LlvmPtx, EverySpecOfTheLibrary) {
  const DeviceFacts facts = device_facts(GetParam());
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto families = families_for(*spec, GetParam());
    if (!families.ok()) continue;
    SCOPED_TRACE(entry.path);
    for (const Family family : *families) {
      if (legal_plans(*spec, family, facts).empty()) continue;
      check(*spec, best_plan(*spec, family, facts));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, LlvmPtx, testing::Values(Target::kSm80, Target::kSm90a),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace attune
