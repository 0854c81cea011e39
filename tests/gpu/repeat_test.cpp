// Launches that keep the whole GPU busy, with the same inputs: a race between warps shows as bits
// that differ in a few rows of a few launches.
#include <attune/attune.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {
namespace {

constexpr att_shape kShape = {4, 32, 32, 1024, 1024};
constexpr int kLaunches = 200;

class Repeat : public testing::TestWithParam<const char*> {};

TEST_P(Repeat, EveryLaunchGivesTheSameBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const att_runtime_options options = {sizeof options, "cuda:0", ""};
  att_runtime* runtime = nullptr;
  att_spec* spec = nullptr;
  att_kernel* kernel = nullptr;
  ASSERT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  ASSERT_EQ(att_spec_from_yaml(GetParam(), &spec), ATT_OK) << att_last_error();
  ASSERT_EQ(att_kernel_get(runtime, spec, &kShape, &kernel), ATT_OK) << att_last_error();

  std::vector<void*> buffers;
  const auto allocate = [&](std::size_t bytes) {
    return buffers.emplace_back(*bank.device().allocate(bytes));
  };
  const std::size_t values = std::size_t{4} * 32 * 1024 * 128;  // the widest head's
  std::vector<std::uint16_t> host(values);
  std::mt19937 random{11};
  std::normal_distribution<float> normal;
  for (std::uint16_t& x : host) {
    x = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  }
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = kShape;
  const void** const inputs[] = {&args.q, &args.k, &args.v};
  for (const void** input : inputs) {
    std::shuffle(host.begin(), host.begin() + 4096, random);
    void* const buffer = allocate(values * 2);
    ASSERT_TRUE(bank.device().copy_to_device(buffer, host.data(), values * 2).ok());
    *input = buffer;
  }
  std::vector<float> lse(std::size_t{4} * 32 * 1024), first;
  args.o = allocate(values * 2);
  args.lse = static_cast<float*>(allocate(lse.size() * 4));
  args.workspace = allocate(att_kernel_workspace_bytes(kernel, &kShape) + 16);
  int different = 0;
  for (int launch = 0; launch < kLaunches; ++launch) {
    ASSERT_EQ(att_forward(kernel, &args, nullptr), ATT_OK) << att_last_error();
    ASSERT_TRUE(bank.device().synchronize().ok());
    ASSERT_TRUE(bank.device().copy_to_host(lse.data(), args.lse, lse.size() * 4).ok());
    if (launch == 0) first = lse;
    different += lse != first ? 1 : 0;
  }
  EXPECT_EQ(different, 0) << "of " << kLaunches << " launches";
  for (void* buffer : buffers) bank.device().free(buffer);
  att_kernel_destroy(kernel);
  att_spec_destroy(spec);
  att_runtime_destroy(runtime);
}

INSTANTIATE_TEST_SUITE_P(
    All, Repeat,
    testing::Values(
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n",
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n",
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: q_idx - kv_idx < 256 and causal\n",
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n"));

}  // namespace
}  // namespace attune::gpu_test
