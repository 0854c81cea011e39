// Dropout whose seed and offset lie in device memory: the same bits as where the launch brings
// them, in every family and in both passes, and others where a captured launch finds others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/include/attune/attune.h"
#include "tests/gpu/driver.hpp"
#include "tests/gpu/judge.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::gpu_test {
namespace {

// Gradients are compared to the bit.
constexpr const char* kSpecs[] = {
    "dtype: bf16\nhead_dim: 64\nmask: causal",
    "dtype: fp16\nhead_dim: 128",
    "dtype: bf16\nhead_dim: 128\nmask: causal\nscore: 20 * tanh(score / 20)",
    "dtype: bf16\nhead_dim: {qk: 192, v: 128}\nmask: causal",
    "dtype: fp32\nhead_dim: 64\nmask: causal",
    "dtype: fp32\nprecision: tf32\nhead_dim: 64"};
constexpr ProblemShape kShape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 333};

AttentionSpec with_dropout(const std::string& lines, const char* dropout) {
  return spec_of(fmt::format("name: t\ndeterministic: true\n{}\ndropout: {}\n", lines, dropout));
}

class DeviceSeed : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!bank_.missing().empty()) GTEST_SKIP() << bank_.missing();
    plans_ = cheapest_of_both_passes(of_launch_, kShape, bank_.device().facts());
    std::vector<Request> requests = requests_of(of_launch_, plans_);
    std::ranges::copy(requests_of(of_device_, plans_), std::back_inserter(requests));
    for (const AttentionSpec* spec : {&of_launch_, &of_device_}) {
      for (const KernelPlan& plan : forward_plans()) requests.push_back({*spec, plan});
    }
    bank_.prepare(requests);
  }
  std::vector<KernelPlan> forward_plans() {
    return cheapest_of_families(of_launch_, kShape, bank_.device().facts());
  }
  HostOutput output(const AttentionSpec& spec, const KernelPlan& plan) {
    const auto kernel = bank_.get(spec, plan);
    auto problem = BackwardProblem::make(bank_.device(), spec, problem_, **kernel, 3);
    EXPECT_TRUE(problem.ok()) << render(problem.error());
    return *(*problem)->forward_output();
  }

  KernelBank& bank_ = KernelBank::instance();
  const AttentionSpec of_launch_ = with_dropout(GetParam(), "0.25");
  const AttentionSpec of_device_ = with_dropout(GetParam(), "{p: 0.25, seed: device}");
  const HostProblem problem_ = random_problem(of_launch_, kShape, 11);
  BackwardPlans plans_;
};

TEST_P(DeviceSeed, GivesTheBitsOfASeedOfTheLaunchForward) {
  for (const KernelPlan& plan : forward_plans()) {
    const HostOutput wanted = output(of_launch_, plan), found = output(of_device_, plan);
    EXPECT_EQ(found.o, wanted.o) << to_string(plan);
    EXPECT_EQ(found.lse, wanted.lse) << to_string(plan);
    EXPECT_TRUE(judge(of_device_, problem_, {plan}));
  }
}

TEST_P(DeviceSeed, GivesTheBitsOfASeedOfTheLaunchBackward) {
  ASSERT_FALSE(plans_.backward.empty());
  Device& device = bank_.device();
  for (const KernelPlan& plan : plans_.backward) {
    const auto gradients = [&](const AttentionSpec& spec) {
      const auto forward = bank_.get(spec, plans_.forward), backward = bank_.get(spec, plan);
      EXPECT_TRUE(backward.ok()) << to_string(plan) << ": " << render(backward.error());
      auto problem = BackwardProblem::make(device, spec, problem_, **forward, 3);
      EXPECT_TRUE(problem.ok()) << render(problem.error());
      return *(*problem)->run(**backward);
    };
    EXPECT_TRUE(is_same(gradients(of_device_), gradients(of_launch_))) << to_string(plan);
    EXPECT_TRUE(judge_backward(of_device_, kShape, 7, plans_.forward, {plan}));
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, DeviceSeed, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

// A kernel that nobody had asked for when the capture began: it is compiled and loaded meanwhile,
// on the thread that captures. Each replay drops what the state says that it finds.
TEST(DeviceSeedInAGraph, EachReplayReadsWhatStandsThere) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  Device& device = bank.device();
  constexpr att_shape kGraphShape = {1, 2, 2, 128, 64};
  constexpr std::size_t kHead = 64, kQueries = 2 * 128 * kHead, kKeys = 2 * 64 * kHead;
  const att_runtime_options options = {sizeof options, "cuda:0", ""};
  att_runtime* runtime = nullptr;
  att_spec* spec = nullptr;
  att_kernel* kernel = nullptr;
  ASSERT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  ASSERT_EQ(att_spec_from_yaml("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n"
                               "dropout: {p: 0.5, seed: device}\n",
                               &spec),
            ATT_OK)
      << att_last_error();
  // With Q of zeros and V of ones O is twice the share of keys that stay.
  std::array<void*, 6> buffers{};
  const std::array<std::size_t, 6> sizes = {kQueries * 2, kKeys * 2, kKeys * 2,
                                            kQueries * 2, 16,        std::size_t{1} << 24};
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = device.allocate(sizes[i]).value();
    ASSERT_TRUE(device.fill(buffers[i], 0, sizes[i]).ok());
  }
  const std::vector<std::uint16_t> ones(kKeys, 0x3f80);
  ASSERT_TRUE(device.copy_to_device(buffers[2], ones.data(), sizes[2]).ok());
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = kGraphShape;
  args.q = buffers[0];
  args.k = buffers[1];
  args.v = buffers[2];
  args.o = buffers[3];
  args.dropout_state = static_cast<const std::uint64_t*>(buffers[4]);
  args.workspace = buffers[5];
  const Stream stream;
  att_status got = ATT_FAILED, launched = ATT_FAILED;
  const Graph graph(stream, [&](CUstream on) {
    got = att_kernel_get(runtime, spec, &kGraphShape, &kernel);
    if (got == ATT_OK) launched = att_forward(kernel, &args, on);
  });
  ASSERT_EQ(got, ATT_OK) << att_last_error();
  ASSERT_EQ(launched, ATT_OK) << att_last_error();
  ASSERT_LE(att_kernel_workspace_bytes(kernel, &kGraphShape), sizes[5]);
  const auto replayed = [&](std::uint64_t seed, std::uint64_t offset) {
    const std::uint64_t state[] = {seed, offset};
    EXPECT_TRUE(device.copy_to_device(buffers[4], state, sizeof state).ok());
    EXPECT_TRUE(device.fill(buffers[3], 0xff, sizes[3]).ok());
    EXPECT_TRUE(device.synchronize().ok());
    graph.launch(stream);
    std::vector<std::uint16_t> o(kQueries);
    EXPECT_TRUE(device.synchronize().ok());
    EXPECT_TRUE(device.copy_to_host(o.data(), buffers[3], sizes[3]).ok());
    return o;
  };
  for (const auto& [seed, offset] :
       {std::pair<std::uint64_t, std::uint64_t>{1, 0}, {1, 4}, {2, 0}}) {
    const std::vector<std::uint16_t> o = replayed(seed, offset);
    EXPECT_EQ(replayed(seed, offset), o);
    int wrong = 0;
    for (int h = 0; h < 2; ++h) {
      for (int q = 0; q < 128; ++q) {
        int kept = 0;
        for (int k = 0; k < 64; ++k) kept += dropped(seed, offset, 128, 2, 0, h, q, k) ? 0 : 1;
        const std::uint32_t bits = std::uint32_t{o[static_cast<std::size_t>(q * 2 + h) * kHead]}
                                   << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof value);
        wrong += value == static_cast<float>(kept) / 32 ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << seed << " " << offset;
  }
  for (void* buffer : buffers) device.free(buffer);
  att_kernel_destroy(kernel);
  att_spec_destroy(spec);
  att_runtime_destroy(runtime);
}

}  // namespace
}  // namespace attune::gpu_test
