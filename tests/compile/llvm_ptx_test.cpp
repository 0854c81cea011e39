// Every spec of the library through Clang to PTX, for every GPU family: the text that NVRTC takes,
// and what the instructions in it must be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/support/parallel.hpp"
#include "tests/compile/learning_specs.hpp"
#include "tests/compile/strict_specs.hpp"

namespace attune {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr ProblemShape kShape{
    .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};

// A target, and an order of instructions; a test each keeps them within the time limit.
class LlvmPtx : public testing::TestWithParam<std::pair<Target, LlvmOrder>> {
 protected:
  void SetUp() override {
    auto opened = open_llvm_compiler(GetParam().second);
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

  // What must stand in the PTX of a job, and what must not.
  struct Job {
    std::string_view path;
    KernelPlan plan;
    GeneratedKernel generated;
    Result<CompiledKernel> kernel = Error{};
  };
  static void check(const Job& job) {
    SCOPED_TRACE(job.path);
    SCOPED_TRACE(to_string(job.plan));
    ASSERT_TRUE(job.kernel.ok()) << render(job.kernel.error()).substr(0, 2000);
    const std::string ptx(job.kernel->image.begin(), job.kernel->image.end());
    EXPECT_THAT(ptx, HasSubstr(".target " + std::string(to_string(job.plan.target)) + "\n"));
    EXPECT_THAT(ptx, HasSubstr(".visible .entry " + job.generated.symbol + "("));
    EXPECT_THAT(ptx, HasSubstr("ex2.approx.ftz.f32"));
    const auto* const mla = std::get_if<MlaPlan>(&job.plan.tile);
    const bool has_wgmma =
        job.plan.family() == Family::kSm90a || (mla != nullptr && mla->tile_q == 64);
    EXPECT_THAT(
        ptx, HasSubstr(has_wgmma ? "wgmma.mma_async.sync.aligned" : "mma.sync.aligned.m16n8k16"));
    // A call or a local array means that a tile body stayed out of line or out of registers.
    EXPECT_THAT(ptx, Not(HasSubstr("call.uni")));
    EXPECT_THAT(ptx, Not(HasSubstr("__local_depot")));
  }

  std::unique_ptr<Compiler> compiler_;
};

// The two orders of instructions take turns from kernel to kernel: they share all but one pass. A
// fifth of the kernels each.
TEST_P(LlvmPtx, EverySpecOfTheLibrary) {
  const auto [target, order] = GetParam();
  int number = order == LlvmOrder::kListed ? 1 : 0;
  constexpr int kTurns = 5;
  const DeviceFacts facts = device_facts(target);
  std::vector<Job> jobs;
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto families = families_for(*spec, target);
    if (!families.ok()) continue;
    int kernel = number++;
    for (const Family family : *families) {
      if (legal_plans(*spec, family, facts).empty() || ++kernel % kTurns != 1) continue;
      const KernelPlan plan = best_plan(*spec, family, facts);
      auto generated = emit(*spec, plan);
      ASSERT_TRUE(generated.ok()) << entry.path << ": " << render(generated.error());
      jobs.push_back({.path = entry.path, .plan = plan, .generated = *std::move(generated)});
    }
  }
  parallel_for(static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i) {
    Job& job = jobs[static_cast<std::size_t>(i)];
    job.kernel = compiler_->compile(job.generated.source, job.generated.symbol, job.plan.target);
  });
  for (const Job& job : jobs) check(job);
}

// Of every family that has one, plain and with all that an element may go through at once. The two
// orders take turns here, too.
TEST_P(LlvmPtx, BackwardKernels) {
  const auto [target, order] = GetParam();
  int number = order == LlvmOrder::kListed ? 1 : 0;
  const DeviceFacts facts = device_facts(target);
  for (const char* lines : {"head_dim: 128\nmask: causal\n",
                            "head_dim: 128\nmask: sliding_window(100)\ndropout: 0.1\n"
                            "score: 30 * tanh(score / 30)\n",
                            "head_dim: {qk: 192, v: 128}\nmask: causal\nsink: 0.5\n"}) {
    const auto spec =
        parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\n") + lines, "t").value();
    const auto families = families_for(spec, target, Pass::kBackward);
    ASSERT_TRUE(families.ok()) << render(families.error());
    for (const Family family : *families) {
      if (++number % 2 == 0) continue;
      const std::vector<KernelPlan> plans = legal_plans(spec, family, facts, Pass::kBackward);
      ASSERT_FALSE(plans.empty());
      SCOPED_TRACE(std::string(lines) + to_string(plans.front()));
      const auto generated = emit(spec, plans.front());
      ASSERT_TRUE(generated.ok()) << render(generated.error());
      const auto kernel = compiler_->compile(generated->source, generated->symbol, target);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error()).substr(0, 2000);
      const std::string ptx(kernel->image.begin(), kernel->image.end());
      EXPECT_THAT(ptx, HasSubstr(family == Family::kSm80 ? "mma.sync.aligned.m16n8k16"
                                                         : "wgmma.mma_async.sync.aligned"));
      EXPECT_THAT(ptx, HasSubstr(".visible .entry " + generated->symbol + "_queries("));
    }
  }
}

// What is learned, in turns likewise: there are lanes of a warp to be asked, and no array to be
// indexed.
TEST_P(LlvmPtx, LearningKernels) {
  const auto [target, order] = GetParam();
  int number = order == LlvmOrder::kListed ? 1 : 0;
  for (const char* lines : compile_test::kLearningSpecs) {
    if (++number % 2 == 0) continue;
    const auto spec =
        parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\n") + lines, "t").value();
    const auto families = families_for(spec, target, Pass::kBackward);
    ASSERT_TRUE(families.ok()) << render(families.error());
    for (const Family family : *families) {
      const std::vector<KernelPlan> plans =
          legal_plans(spec, family, device_facts(target), Pass::kBackward);
      ASSERT_FALSE(plans.empty());
      SCOPED_TRACE(std::string(lines) + to_string(plans.front()));
      const auto generated = emit(spec, plans.front());
      ASSERT_TRUE(generated.ok()) << render(generated.error());
      const auto kernel = compiler_->compile(generated->source, generated->symbol, target);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error()).substr(0, 2000);
      const std::string ptx(kernel->image.begin(), kernel->image.end());
      EXPECT_THAT(ptx, Not(HasSubstr("call.uni")));
      EXPECT_THAT(ptx, Not(HasSubstr("__local_depot")));
      const bool has_last = generated->source.find("#define ATT_LEARNS 1") != std::string::npos;
      const std::string last = ".visible .entry " + generated->symbol + "_learned(";
      EXPECT_EQ(ptx.find(last) != std::string::npos, has_last);
    }
  }
}

// V in the columns of K: 16, 32 and 64 rows. In turns likewise.
TEST_P(LlvmPtx, MlaKernels) {
  const auto [target, order] = GetParam();
  int number = order == LlvmOrder::kListed ? 1 : 0;
  for (const char* lines : {"layout: paged\nmask: causal\n", "layout: bhsd\n"}) {
    const auto spec = parse_spec(
        std::string(
            "attune: 1\nname: t\ndtype: fp16\nhead_dim: {qk: 576, v: 512}\nv_in_k: true\n") +
            lines,
        "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    for (const char* tile : {"q16 k32 s3 w4 p2", "q32 k64 s3 w8 p1", "q64 k64 s2 w8 p4"}) {
      const auto plan = parse_plan("mla forward " + std::string(to_string(target)) + " " + tile);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      if (!check_plan(*spec, *plan, device_facts(target)).ok() || ++number % 2 == 0) continue;
      Job job{.path = lines, .plan = *plan, .generated = *emit(*spec, *plan)};
      job.kernel = compiler_->compile(job.generated.source, job.generated.symbol, target);
      check(job);
    }
  }
}

// `accuracy: strict`, in turns likewise.
TEST_P(LlvmPtx, StrictKernels) {
  const auto [target, order] = GetParam();
  const DeviceFacts facts = device_facts(target);
  int number = order == LlvmOrder::kListed ? 1 : 0;
  for (const char* lines : compile_test::kStrictSpecs) {
    const auto spec =
        parse_spec(std::string("attune: 1\nname: t\naccuracy: strict\n") + lines, "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto families = families_for(*spec, target);
    ASSERT_TRUE(families.ok()) << render(families.error());
    for (const Family family : *families) {
      if (legal_plans(*spec, family, facts).empty() || ++number % 2 == 0) continue;
      const KernelPlan plan = best_plan(*spec, family, facts);
      auto generated = emit(*spec, plan);
      ASSERT_TRUE(generated.ok()) << render(generated.error());
      Job job{.path = lines, .plan = plan, .generated = *std::move(generated)};
      job.kernel = compiler_->compile(job.generated.source, job.generated.symbol, target);
      check(job);
    }
  }
}

// Rows of several sequences: Q in registers, and in shared memory. In turns likewise.
TEST_P(LlvmPtx, SharedPrefixes) {
  int number = GetParam().second == LlvmOrder::kListed ? 1 : 0;
  for (const char* tile : {"q16 k16 s3 w4 p32", "q32 k16 s3 w4 p32"}) {
    if (++number % 2 == 0) continue;
    const auto spec = parse_spec(
        "attune: 1\nname: t\ndtype: bf16\nlayout: paged\nhead_dim: 128\nmask: causal\n"
        "score: 20 * tanh(score / 20)\nshared_prefixes: true\n",
        "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto plan =
        parse_plan("decode forward " + std::string(to_string(GetParam().first)) + " " + tile);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    Job job{.path = tile, .plan = *plan, .generated = {}};
    auto generated = emit(*spec, *plan);
    ASSERT_TRUE(generated.ok()) << render(generated.error());
    job.generated = std::move(generated).value();
    job.kernel = compiler_->compile(job.generated.source, job.generated.symbol, plan->target);
    check(job);
    ASSERT_TRUE(job.kernel.ok());
    EXPECT_THAT(std::string(job.kernel->image.begin(), job.kernel->image.end()),
                HasSubstr(".visible .entry " + job.generated.symbol + "_items("));
  }
}

// fp32's, forward and backward, in both precisions, in turns likewise.
TEST_P(LlvmPtx, Tf32Products) {
  const auto [target, order] = GetParam();
  const DeviceFacts facts = device_facts(target);
  int number = order == LlvmOrder::kListed ? 1 : 0;
  for (const char* precision : {"strict", "tf32"}) {
    const auto spec = parse_spec(
        std::string("attune: 1\nname: t\ndtype: fp32\nhead_dim: 64\nmask: causal\nprecision: ") +
            precision + "\n",
        "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    for (const Pass pass : kPasses) {
      if (++number % 2 == 0) continue;
      const auto plan = default_plan(*spec, kShape, facts, pass);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      const auto generated = emit(*spec, *plan);
      ASSERT_TRUE(generated.ok()) << render(generated.error());
      const auto kernel = compiler_->compile(generated->source, generated->symbol, plan->target);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error()).substr(0, 2000);
      const std::string ptx(kernel->image.begin(), kernel->image.end());
      EXPECT_THAT(ptx, HasSubstr("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"));
      EXPECT_THAT(ptx, Not(HasSubstr("call.uni")));
      EXPECT_THAT(ptx, Not(HasSubstr("__local_depot")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, LlvmPtx,
                         testing::Values(std::pair(Target::kSm80, LlvmOrder::kGiven),
                                         std::pair(Target::kSm80, LlvmOrder::kListed),
                                         std::pair(Target::kSm90a, LlvmOrder::kGiven),
                                         std::pair(Target::kSm90a, LlvmOrder::kListed)),
                         [](const auto& info) {
                           return std::string(to_string(info.param.first)) +
                                  (info.param.second == LlvmOrder::kListed ? "_listed" : "");
                         });

}  // namespace
}  // namespace attune
