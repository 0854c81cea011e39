// Pieces count their arrivals in memory that nobody zeroes (templates/ptx/arrive.cuh): whatever
// lies there before a launch, and whatever a launch left there, the next one gives the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tuner/measure/device_buffer.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

struct Case {
  const char* name;
  const char* spec;
  const char* plan;
  ProblemShape shape;
};
// Items that stretches cut anywhere, and pieces of a dense batch.
constexpr Case kCases[] = {{"Stretches",
                            "head_dim: 64\nlayout: paged\nmask: causal",
                            "q16 k16 s3 w4 p16 stretches",
                            {.batch = 4, .heads = 4, .kv_heads = 2, .q_len = 4, .kv_len = 2500}},
                           {"Packed",
                            "head_dim: 64\nlayout: thd",
                            "q16 k16 s3 w4 p64 stretches",
                            {.batch = 3, .heads = 2, .kv_heads = 1, .q_len = 6, .kv_len = 9000}},
                           {"Pieces",
                            "head_dim: 64",
                            "q16 k16 s3 w4 p6",
                            {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 1, .kv_len = 1900}}};

class MarkedCounters : public testing::TestWithParam<Case> {
 protected:
  // Launches whose O differs from the first one's, which finds zeros, or -1.
  int different(const planted::Fault& fault) const {
    KernelBank& bank = KernelBank::instance();
    Device& device = bank.device();
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: bf16\n{}\n", GetParam().spec));
    const auto plan = parse_plan(
        fmt::format("decode forward {} {}", to_string(device.facts().target), GetParam().plan));
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    planted::EditingCompiler editing(bank.compiler(), fault);
    const auto built = build(spec, *plan, editing, nullptr);
    EXPECT_TRUE(built.ok()) << render(built.error());
    if (!built.ok()) return -1;
    const auto kernel = device.load(spec, *plan, built->code.image);
    const ProblemShape& shape = GetParam().shape;
    const auto problem = DeviceProblem::for_timing(device, spec, shape, kTimedSeed);
    const std::size_t bytes = (*kernel)->workspace_bytes(shape);
    const auto workspace = DeviceBuffer::make(device, bytes);
    EXPECT_TRUE(kernel.ok() && problem.ok() && workspace.ok());
    const std::int64_t slices = is_packed(spec) ? 1 : shape.batch;
    std::vector<char> first, o(static_cast<std::size_t>(slices * shape.heads * shape.q_len) * 128);
    int found = 0;
    constexpr int kAsItIs = -1, kLeft[] = {0, kAsItIs, 0xFF, kAsItIs, kAsItIs, 0xB7, kAsItIs};
    for (const int left : kLeft) {
      if (left != kAsItIs) {
        EXPECT_TRUE(device.fill(workspace->data(), std::uint8_t(left), bytes).ok());
      }
      EXPECT_TRUE((*problem)->poison().ok());
      EXPECT_TRUE((*kernel)->launch((*problem)->params(), workspace->data(), nullptr).ok());
      EXPECT_TRUE(device.synchronize().ok());
      EXPECT_TRUE(device.copy_to_host(o.data(), (*problem)->params().o, o.size()).ok());
      if (first.empty()) first = o;
      found += o != first ? 1 : 0;
    }
    return found;
  }
};

TEST_P(MarkedCounters, AreRightWhateverLiesThere) {
  if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  EXPECT_EQ(different({"nothing", {}}), 0);
}

TEST_P(MarkedCounters, ThatAreLeftAsTheyAreAreFound) {
  if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  EXPECT_GT(different({"no mark is left", {{"*counter = kCounterMark;", ""}}}), 0);
}

TEST_P(MarkedCounters, ThatAreTakenForMarkedAreFound) {
  if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
  const planted::Edit any = {"if ((found & ~kCountBits) == kCounterMark) return;", "return;"};
  EXPECT_GT(different({"any count is marked", {any}}), 0);
}

INSTANTIATE_TEST_SUITE_P(All, MarkedCounters, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
