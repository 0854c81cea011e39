// Every spec of the library, compiled by NVRTC for GPUs that need not be here. One plan, the cost
// model's, for each spec and target; sm_80 and sm_120, which share their families, take turns.
// specs/bench repeats the others' forms and is left out.
#include <gtest/gtest.h>

#include <set>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"
#include "runtime/jit/compiler.hpp"
#include "tests/compile/learning_specs.hpp"
#include "tests/compile/strict_specs.hpp"

namespace attune {
namespace {

struct Case {
  LibrarySpec library;
  Target target;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const LibrarySpec& library : spec_library()) {
    if (library.name.starts_with("bench/")) continue;
    all.push_back({library, Target::kSm90a});
    all.push_back({library, all.size() % 4 == 1 ? Target::kSm80 : Target::kSm120});
  }
  return all;
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.library.name << " for " << to_string(c.target);
}

// The sm80 family's plans are pruned so that none spills. The sm90a family's registers are split
// between its warps by hand, and some complex scores and masks pay a few spills for a larger tile;
// the tuner's clock judges them. The mla family's mma.sync kernel fills the registers with Q and O;
// what spills is used outside of the products.
int spill_ceiling_bytes(Family family) {
  return family == Family::kSm90a ? 256 : family == Family::kMla ? 96 : 0;
}

class Compile : public testing::TestWithParam<Case> {};

TEST_P(Compile, KeepsToItsRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  const auto [library, target] = GetParam();
  if (!(*compiler)->supports(target)) GTEST_SKIP() << (*compiler)->identity();
  const auto spec = parse_spec(library.text, library.path);
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const ProblemShape shape =
      spec->tune_shapes.empty()
          ? ProblemShape{.batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096}
          : spec->tune_shapes.front();
  const auto plan = default_plan(*spec, shape, device_facts(target));
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  const auto source = emit(*spec, *plan);
  ASSERT_TRUE(source.ok()) << render(source.error());
  const auto kernel = (*compiler)->compile(source->source, source->symbol, target);
  ASSERT_TRUE(kernel.ok()) << to_string(*plan) << "\n" << render(kernel.error());
  const std::string what = to_string(*plan) + "\n" + kernel->log;
  EXPECT_LE(kernel->spill_store_bytes, spill_ceiling_bytes(plan->family())) << what;
  EXPECT_LE(kernel->spill_load_bytes, spill_ceiling_bytes(plan->family())) << what;
  EXPECT_LE(kernel->registers, 255) << what;
  // How ptxas says that it waits for wgmma products of its own accord, or runs them one by one.
  EXPECT_EQ(kernel->log.find("(C75"), std::string::npos) << what;
  RecordProperty("plan", to_string(*plan));
  RecordProperty("registers", kernel->registers);
  RecordProperty("compile_ms", static_cast<int>(kernel->compile_seconds * 1000));
}

INSTANTIATE_TEST_SUITE_P(Library, Compile, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name =
      std::string(info.param.library.name) + "_" + std::string(to_string(info.param.target));
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

struct DecodeCase {
  const char* lines;  // of the spec
  Target target;
  const char* tile;
};

TEST(CompileDecode, KeepsToItsRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  for (const auto& [lines, target, tile] :
       {DecodeCase{"kv_dtype: fp8_e4m3\ndtype: bf16\nlayout: paged\nhead_dim: 128\n",
                   Target::kSm90a, "q16 k16 s3 w4 p1"},
        {"kv_dtype: fp8_e4m3\ndtype: fp16\nlayout: thd\nhead_dim: 192\n", Target::kSm90a,
         "q16 k32 s2 w4 p4"},
        {"kv_dtype: fp8_e4m3\ndtype: bf16\nhead_dim: 128\n", Target::kSm80, "q16 k16 s3 w4 p1"},
        {"dtype: bf16\nhead_dim: 128\n", Target::kSm90a, "q16 k16 s3 w8 p8 cluster"},
        {"dtype: fp16\nhead_dim: 64\nmask: causal\n", Target::kSm90a, "q32 k16 s3 w4 p4 cluster"},
        {"dtype: bf16\nhead_dim: 128\nlayout: paged\n", Target::kSm90a, "q16 k16 s4 w4 p8 cluster"},
        // Rows of several sequences: Q in registers, and in shared memory.
        {"dtype: fp16\nhead_dim: 128\nlayout: paged\nshared_prefixes: true\n", Target::kSm90a,
         "q16 k16 s3 w4 p32"},
        {"dtype: bf16\nhead_dim: 128\nlayout: paged\nshared_prefixes: true\nmask: causal\n",
         Target::kSm90a, "q32 k16 s3 w4 p32"},
        {"dtype: bf16\nhead_dim: {qk: 192, v: 128}\nlayout: paged\nshared_prefixes: true\n",
         Target::kSm90a, "q32 k16 s3 w4 p32"},
        {"dtype: bf16\nhead_dim: 64\nlayout: paged\nshared_prefixes: true\n"
         "score: 20 * tanh(score / 20)\n",
         Target::kSm80, "q32 k32 s3 w4 p64"}}) {
    if (!(*compiler)->supports(target)) continue;
    const auto spec = parse_spec(std::string("attune: 1\nname: t\n") + lines, "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto plan = parse_plan("decode forward " + std::string(to_string(target)) + " " + tile);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    ASSERT_TRUE(check_plan(*spec, *plan, device_facts(target)).ok());
    const auto source = emit(*spec, *plan);
    ASSERT_TRUE(source.ok()) << render(source.error());
    const auto kernel = (*compiler)->compile(source->source, source->symbol, target);
    ASSERT_TRUE(kernel.ok()) << to_string(*plan) << "\n" << render(kernel.error());
    EXPECT_EQ(kernel->spill_store_bytes, 0) << lines << kernel->log;
    EXPECT_LE(kernel->registers, 255) << lines << kernel->log;
  }
}

// `accuracy: strict`: the cost model's plans, and one of each way through a tile.
TEST(CompileStrict, KeepsToItsRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  constexpr ProblemShape kShape{
      .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
  for (const char* lines : compile_test::kStrictSpecs) {
    const auto spec =
        parse_spec(std::string("attune: 1\nname: t\naccuracy: strict\n") + lines, "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    for (const Target target : {Target::kSm80, Target::kSm90a}) {
      if (!(*compiler)->supports(target)) continue;
      const auto plan = default_plan(*spec, kShape, device_facts(target));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      const auto source = emit(*spec, *plan);
      ASSERT_TRUE(source.ok()) << render(source.error());
      const auto kernel = (*compiler)->compile(source->source, source->symbol, target);
      ASSERT_TRUE(kernel.ok()) << lines << to_string(*plan) << "\n" << render(kernel.error());
      EXPECT_LE(kernel->spill_store_bytes, spill_ceiling_bytes(plan->family()))
          << lines << to_string(*plan) << kernel->log;
      EXPECT_EQ(kernel->log.find("(C75"), std::string::npos) << lines << to_string(*plan);
    }
  }
}

// What is known of a packed sequence takes registers that the accumulators of head dim 128 leave:
// every plan of the five products.
TEST(CompilePackedBackward, KeepsToItsRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  if (!(*compiler)->supports(Target::kSm90a)) GTEST_SKIP() << (*compiler)->identity();
  // Once an item, of the warp that finds it, which has 24 registers.
  constexpr int kSpillBytes = 160;
  for (const char* lines :
       {"head_dim: 128\nmask: causal\n", "head_dim: 128\n", "head_dim: 64\nmask: causal\n",
        "head_dim: 64\n", "head_dim: 80\nmask: causal\n"}) {
    const auto spec =
        parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\nlayout: thd\n") + lines, "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    for (const KernelPlan& plan :
         legal_plans(*spec, Family::kSm90a, device_facts(Target::kSm90a), Pass::kBackward)) {
      const auto source = emit(*spec, plan);
      ASSERT_TRUE(source.ok()) << render(source.error());
      const auto kernel = (*compiler)->compile(source->source, source->symbol, Target::kSm90a);
      ASSERT_TRUE(kernel.ok()) << lines << to_string(plan) << "\n" << render(kernel.error());
      EXPECT_LE(kernel->spill_store_bytes, kSpillBytes) << lines << to_string(plan) << kernel->log;
      EXPECT_EQ(kernel->log.find("(C75"), std::string::npos) << lines << to_string(plan);
    }
  }
}

// The sm90a family's accumulators leave few registers beside what is learned; the clock judges
// spills. Here the sum of the kernels of an image: three or four.
class CompileLearned : public testing::TestWithParam<const char*> {};

TEST_P(CompileLearned, BuildsInEveryFamily) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  constexpr ProblemShape kShape{
      .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
  const std::string lines = GetParam();
  const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\n" + lines, "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  for (const Target target : {Target::kSm80, Target::kSm90a}) {
    if (!(*compiler)->supports(target)) continue;
    const auto plans = plans_by_cost(*spec, kShape, device_facts(target), Pass::kBackward);
    ASSERT_TRUE(plans.ok()) << render(plans.error());
    std::set<Family> families;
    for (const KernelPlan& plan : *plans) {
      if (!families.insert(plan.family()).second) continue;
      const auto source = emit(*spec, plan);
      ASSERT_TRUE(source.ok()) << render(source.error());
      const auto kernel = (*compiler)->compile(source->source, source->symbol, target);
      ASSERT_TRUE(kernel.ok()) << lines << to_string(plan) << "\n" << render(kernel.error());
      const int ceiling = plan.family() == Family::kSm80 ? 64 : 512;
      EXPECT_LE(kernel->spill_store_bytes, ceiling) << lines << to_string(plan);
      EXPECT_EQ(kernel->log.find("(C75"), std::string::npos) << lines << to_string(plan);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompileLearned, testing::ValuesIn(compile_test::kLearningSpecs));

// V in the columns of K: every way of sharing rows, keys and columns among warps, for processors
// with much and with little shared memory.
TEST(CompileMla, KeepsToItsRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  // Masks and pages take registers that O and Q have: what spills is outside of the products.
  constexpr int kSpillBytes = 96;
  for (const auto& [lines, target, tile] :
       {DecodeCase{"layout: bhsd\n", Target::kSm90a, "q16 k64 s3 w8 p1"},
        {"layout: paged\n", Target::kSm90a, "q16 k32 s5 w4 p4"},
        {"layout: paged\nmask: causal\n", Target::kSm90a, "q32 k64 s3 w8 p4"},
        {"layout: paged\nmask: causal\n", Target::kSm90a, "q64 k64 s2 w8 p4"},
        {"layout: thd\nmask: causal\n", Target::kSm80, "q16 k32 s3 w4 p2"},
        {"layout: bshd\nmask: causal\n", Target::kSm120, "q16 k32 s2 w4 p2"}}) {
    if (!(*compiler)->supports(target)) continue;
    const auto spec = parse_spec(
        std::string(
            "attune: 1\nname: t\ndtype: bf16\nhead_dim: {qk: 576, v: 512}\nv_in_k: true\n") +
            lines,
        "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto plan = parse_plan("mla forward " + std::string(to_string(target)) + " " + tile);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    const Status legal = check_plan(*spec, *plan, device_facts(target));
    ASSERT_TRUE(legal.ok()) << render(legal.error());
    const auto source = emit(*spec, *plan);
    ASSERT_TRUE(source.ok()) << render(source.error());
    const auto kernel = (*compiler)->compile(source->source, source->symbol, target);
    ASSERT_TRUE(kernel.ok()) << to_string(*plan) << "\n" << render(kernel.error());
    EXPECT_LE(kernel->spill_store_bytes, kSpillBytes) << lines << tile << kernel->log;
    EXPECT_LE(kernel->registers, 255) << lines << kernel->log;
  }
}

struct Fp32Case {
  const char* lines;  // of the spec
  Target target;
  Pass pass;
};
void PrintTo(const Fp32Case& c, std::ostream* out) {
  *out << c.lines << " for " << to_string(c.target) << ", " << to_string(c.pass);
}

class CompileFp32 : public testing::TestWithParam<Fp32Case> {};

TEST_P(CompileFp32, KeepsToItsRegisters) {
  const auto compiler = open_nvrtc_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  const auto& [lines, target, pass] = GetParam();
  if (!(*compiler)->supports(target)) GTEST_SKIP() << (*compiler)->identity();
  const auto spec =
      parse_spec(std::string("attune: 1\nname: t\ndtype: fp32\nmask: causal\n") + lines, "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const ProblemShape shape{.batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
  const auto plan = default_plan(*spec, shape, device_facts(target), pass);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  const auto source = emit(*spec, *plan);
  ASSERT_TRUE(source.ok()) << render(source.error());
  const auto kernel = (*compiler)->compile(source->source, source->symbol, target);
  ASSERT_TRUE(kernel.ok()) << to_string(*plan) << "\n" << render(kernel.error());
  const std::string what = to_string(*plan) + "\n" + kernel->log;
  constexpr int kSpillCeiling = 16;
  EXPECT_LE(kernel->spill_store_bytes, kSpillCeiling) << what;
  EXPECT_LE(kernel->spill_load_bytes, kSpillCeiling) << what;
}

std::vector<Fp32Case> fp32_cases() {
  std::vector<Fp32Case> all;
  for (const char* lines :
       {"head_dim: 64\n", "head_dim: 128\n", "head_dim: 128\nprecision: tf32\n",
        "head_dim: 128\ndropout: 0.1\n", "head_dim: {qk: 192, v: 128}\n", "head_dim: 256\n"}) {
    // One family, of more or less shared memory.
    const bool is_even = all.size() % 4 == 0;
    all.push_back({lines, is_even ? Target::kSm80 : Target::kSm90a, Pass::kForward});
    all.push_back({lines, is_even ? Target::kSm90a : Target::kSm80, Pass::kBackward});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, CompileFp32, testing::ValuesIn(fp32_cases()));

}  // namespace
}  // namespace attune
