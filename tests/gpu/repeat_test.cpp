// Launches that keep the whole GPU busy, with the same inputs: a race between warps shows as bits
// that differ in a few rows of a few launches, or, if it is always lost, as rows that the oracle
// does not know.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "generator/spec/lengths.hpp"
#include "runtime/reference/device_oracle.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShape = {
    .batch = 4, .heads = 32, .kv_heads = 32, .q_len = 1024, .kv_len = 1024};
constexpr int kLaunches = 100;

struct Case {
  const char* name;
  int head_dim;
  const char* mask;
  const char* plan;  // after the target
};
// Four stages under a causal mask, where the next Q may arrive while fragments of this one are on
// their way (an arrival on a barrier does not wait for loads); O staged where Q was, in a buffer of
// its own without a barrier, with one, and in halves; warpgroups that take turns; P through shared
// memory.
constexpr Case kCases[] = {
    {"FourStages64", 64, "causal", "w2 k128 s4 b2 qreg c1 longest g32 frozen tma"},
    {"Warpgroups64", 64, "causal", "w3 k96 s4 b2 qreg c1 longest g32 frozen tma"},
    {"StagedInQ128", 128, "causal", "w2 k128 s3 b2 qreg c1 longest g16 frozen tma"},
    {"StagedInQFull128", 128, "true", "w2 k128 s3 b2 qreg c1 persistent g1 frozen tma"},
    {"Full128", 128, "true", "w2 k64 s4 b1 qreg c1 persistent g1 frozen tma"},
    {"Halves256", 256, "causal", "w2 k64 s2 b1 c1 longest g8 frozen tma"},
    {"Turns96", 96, "true", "w3 k112 s2 b1 c1 persistent g1 frozen pp"},
    {"PInShared64", 64, "true", "w3 k128 s3 b2 qreg psmem c1 persistent g1 frozen"},
    {"PInSharedTurns96", 96, "true", "w3 k128 s2 b1 psmem c1 persistent g1 frozen pp"},
    {"PInSharedCausal128", 128, "causal", "w3 k96 s2 b1 psmem c1 longest g16 frozen tma"},
    {"TurnsCausal128", 128, "causal", "w3 k80 s3 b1 c1 longest g16 frozen tma pp"},
};

// Every launch of the plan gives the same bits, and they are right (which of packed sequences other
// tests see: the GPU's oracle knows none).
void check_repeats(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape) {
  KernelBank& bank = KernelBank::instance();
  Device& device = bank.device();
  const auto kernel = bank.get(spec, plan);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const auto problem = DeviceProblem::for_timing(device, spec, shape, kTimedSeed);
  ASSERT_TRUE(problem.ok()) << render(problem.error());
  ASSERT_TRUE((*problem)->prepare(**kernel).ok());

  const std::int64_t slices = is_packed(spec) ? 1 : shape.batch;
  const std::size_t rows = static_cast<std::size_t>(slices * shape.heads * shape.q_len);
  std::vector<char> o(rows * static_cast<std::size_t>(spec.head_dim_v) * 2), first_o;
  std::vector<char> lse(rows * 4), first_lse;
  int different = 0;
  for (int launch = 0; launch < kLaunches; ++launch) {
    ASSERT_TRUE((*problem)->launch(**kernel, nullptr).ok());
    ASSERT_TRUE(device.synchronize().ok());
    ASSERT_TRUE(device.copy_to_host(o.data(), (*problem)->params().o, o.size()).ok());
    ASSERT_TRUE(device.copy_to_host(lse.data(), (*problem)->params().lse, lse.size()).ok());
    if (launch == 0) {
      first_o = o;
      first_lse = lse;
    }
    different += o != first_o || lse != first_lse ? 1 : 0;
  }
  EXPECT_EQ(different, 0) << "of " << kLaunches << " launches";

  if (is_packed(spec)) return;
  const auto oracle = DeviceOracle::make(device, bank.compiler(), spec);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const att::LaunchParams& params = (*problem)->params();
  const auto answer = (*oracle)->answer(params, all_rows(shape));
  ASSERT_TRUE(answer.ok()) << render(answer.error());
  const auto verdict = (*oracle)->judge(*answer, params);
  ASSERT_TRUE(verdict.ok()) << render(verdict.error());
  EXPECT_EQ(verdict->wrong, "");
}

class Repeat : public testing::TestWithParam<Case> {};

TEST_P(Repeat, EveryLaunchGivesTheSameRightBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  const Case& c = GetParam();
  const AttentionSpec spec =
      spec_of(fmt::format("name: t\ndtype: bf16\nhead_dim: {}\nmask: {}\n", c.head_dim, c.mask));
  const auto plan = parse_plan(fmt::format("sm90a forward sm_90a {}", c.plan));
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  if (bank.gives_up(spec, *plan)) GTEST_SKIP() << "this compiler has too few registers for it";
  check_repeats(spec, *plan, kShape);
}

INSTANTIATE_TEST_SUITE_P(All, Repeat, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Merges that an item's CTAs share, whoever of them comes last: all CTAs at once, and more than
// there are processors for, of which only the last wait.
TEST(RepeatMla, SharedMergesGiveTheSameRightBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  const AttentionSpec spec =
      spec_of("name: t\ndtype: bf16\nhead_dim: {qk: 576, v: 512}\nv_in_k: true\nlayout: bhsd\n");
  for (const char* text : {"q64 k64 s2 w8 p64", "q16 k64 s3 w8 p128", "q64 k64 s2 w8 p5"}) {
    const auto plan = parse_plan(fmt::format("mla forward sm_90a {}", text));
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    for (const std::int64_t batch : {1, 3, 50}) {
      SCOPED_TRACE(fmt::format("{}, {} sequences", text, batch));
      check_repeats(spec, *plan,
                    {.batch = batch, .heads = 128, .kv_heads = 1, .q_len = 1, .kv_len = 9000});
      if (HasFatalFailure()) return;
    }
  }
}

// Items that stretches cut anywhere, into few pieces and many.
TEST(RepeatMla, StretchesGiveTheSameBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  const AttentionSpec spec =
      spec_of("name: t\ndtype: bf16\nhead_dim: {qk: 576, v: 512}\nv_in_k: true\nlayout: thd\n");
  for (const char* text : {"q64 k64 s2 w8 p64 stretches", "q16 k64 s3 w8 p128 stretches"}) {
    const auto plan = parse_plan(fmt::format("mla forward sm_90a {}", text));
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    for (const std::int64_t batch : {1, 3, 50}) {
      SCOPED_TRACE(fmt::format("{}, {} sequences", text, batch));
      check_repeats(
          spec, *plan,
          {.batch = batch, .heads = 128, .kv_heads = 1, .q_len = batch, .kv_len = batch * 9000});
      if (HasFatalFailure()) return;
    }
  }
}

// A list of more items than may be cut, most of which it takes for alike: which of them come first
// is another at every launch.
TEST(RepeatLongLists, PiecesGiveTheSameBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 64\nlayout: paged\nmask: causal\n");
  std::string lengths = "9000, 9000, 9000, 9000";
  for (int i = 0; i < 68; ++i) lengths += ", 1000, 1080";
  spec.lengths = parse_lengths(lengths).value();
  const auto plan =
      parse_plan("sm90a forward sm_90a w2 k64 s3 b1 c1 longest g16 frozen tma heads8 p16");
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  check_repeats(spec, *plan,
                {.batch = 140, .heads = 8, .kv_heads = 1, .q_len = 140, .kv_len = 9000});
}

// Warps that copy rows of pages, with two stages, whose next use of a stage may be two uses ahead
// of the consumers: few keys an item, and many items.
TEST(RepeatPageRows, TwoStagesGiveTheSameBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  AttentionSpec spec = spec_of(
      "name: t\ndtype: bf16\nhead_dim: 192\nlayout: paged\n"
      "mask: causal and q_pos - kv_idx < 1024\n");
  spec.page_size = 1;
  for (const char* text : {"w2 k64 s2 b1 c1 longest g10 frozen tma heads8 rows p16",
                           "w1 k80 s2 b1 c1 longest g10 frozen tma heads4 rows p16"}) {
    const auto plan = parse_plan(fmt::format("sm90a forward sm_90a {}", text));
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    SCOPED_TRACE(text);
    check_repeats(spec, *plan,
                  {.batch = 8, .heads = 48, .kv_heads = 4, .q_len = 128, .kv_len = 15424});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace attune::gpu_test
