// Code that the first launch on pages of some size builds, while its thread captures a graph.
#include <fmt/format.h>

#include "runtime/engine/dispatcher.hpp"
#include "tests/gpu/driver.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/replayed.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShape{.batch = 3, .heads = 8, .kv_heads = 2, .q_len = 2000, .kv_len = 1024};

TEST(CodeOnDemand, IsBuiltWithinACapture) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().target() != Target::kSm90a) GTEST_SKIP() << "of Hopper's boxes";
  const auto spec = std::make_shared<const AttentionSpec>(
      spec_of("name: t\ndtype: bf16\nlayout: paged\nhead_dim: 128\nmask: causal\n"));
  auto opened = open_cuda_device(0);
  ASSERT_TRUE(opened.ok()) << render(opened.error());
  Dispatcher dispatcher(
      std::make_shared<Workshop>(std::move(opened).value(), Overlay::open({}), open_compiler),
      false);
  const auto entry =
      dispatcher.get(spec, SpecId::from_hash(spec_hash(*spec)), kShape, Pass::kForward);
  ASSERT_TRUE(entry.ok()) << render(entry.error());
  const KernelEntry& kernel = **entry;
  ASSERT_NE(kernel.version().for_small_boxes, nullptr) << kernel.version().plan;
  std::uint64_t fallbacks = 0;
  for (const std::int64_t page_size : {16, 8, 64, 48}) {
    SCOPED_TRACE(page_size);
    const HostProblem problem =
        paged::paged_problem(*spec, kShape, {700, 1, 1024}, {1000, 900, 1024}, page_size, 3);
    const std::vector<Row> rows = sample_rows(problem, 300, 5);
    Replayed replayed(bank.device(), *spec, problem);
    void* const workspace = replayed.allocate(kernel.workspace_bytes(kShape) + 16);
    replayed.put(problem);
    const Stream stream;
    Status launched = ok_status();
    const Graph graph(
        stream, [&](CUstream on) { launched = kernel.launch(replayed.params(), workspace, on); });
    ASSERT_TRUE(launched.ok()) << render(launched.error());
    graph.launch(stream);
    const ForwardOracle exact = oracle_forward(*spec, problem, rows, Arithmetic::kMatrixUnit);
    EXPECT_EQ(compare(replayed.rows(problem, rows), exact).wrong, "");
    fallbacks += page_size == 8 ? 1 : 0;
    EXPECT_EQ(kernel.fallback_launches(), fallbacks);
  }
  (*entry)->release();
}

}  // namespace
}  // namespace attune::gpu_test
