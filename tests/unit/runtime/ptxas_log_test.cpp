#include "runtime/jit/ptxas_log.hpp"

#include <gtest/gtest.h>

namespace attune {
namespace {

constexpr const char* kLog =
    R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'att_block_ranges' for 'sm_90a'
ptxas info    : Function properties for att_block_ranges
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers
ptxas info    : Compile time = 1.000 ms
ptxas info    : Compiling entry function 'att_main' for 'sm_90a'
ptxas info    : Function properties for att_main
ptxas         .     40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 40 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compile time = 2.147 ms
ptxas info    : Function properties for helper
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
)";

TEST(PtxasLog, ReadsTheSymbolsOwnPart) {
  const PtxasReport report = parse_ptxas_log(kLog, "att_main");
  EXPECT_TRUE(report.found);
  EXPECT_EQ(report.registers, 168);
  EXPECT_EQ(report.stack_bytes, 40);
  EXPECT_EQ(report.spill_store_bytes, 36);
  EXPECT_EQ(report.spill_load_bytes, 44);
  EXPECT_EQ(report.static_shared_bytes, 256);
  EXPECT_EQ(report.performance_loss, "");
}

TEST(PtxasLog, AKernelWithoutSharedMemoryHasNone) {
  const PtxasReport report = parse_ptxas_log(kLog, "att_block_ranges");
  EXPECT_EQ(report.registers, 18);
  EXPECT_EQ(report.static_shared_bytes, 0);
}

TEST(PtxasLog, TellsThatTheSymbolIsMissing) {
  EXPECT_FALSE(parse_ptxas_log(kLog, "att_mai").found);
  EXPECT_FALSE(parse_ptxas_log("", "att_main").found);
}

TEST(PtxasLog, KeepsTheFirstPerformanceLoss) {
  const std::string loss =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources for the wgmma pipeline in function 'k'";
  EXPECT_EQ(parse_ptxas_log(kLog + loss + "\n", "att_main").performance_loss, loss);
}

}  // namespace
}  // namespace attune
