// What a recipe asks of the CUDA driver, of a made-up backward pass in three launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cuda_kernel.hpp"
#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

using Content = WorkspaceRegion::Content;
using Tensor = TensorMapRecipe::Tensor;

// What the fake driver was asked for, in order.
struct Call {
  std::string what;  // a kernel's symbol, or "zero"
  unsigned grid = 0, threads = 0, shared_bytes = 0, cluster = 1;
  bool overlaps = false;
  att::LaunchParams params{};
  CUdeviceptr data = 0;  // of "zero"
  std::size_t words = 0;
};
std::vector<Call> calls;
std::vector<std::string> kernels;      // by handle - 1
std::vector<const void*> map_sources;  // tensors of the descriptors that were encoded
int driver_version = 0;
CUresult of_overlap = 0;  // of a launch that overlaps the one in front of it
CUresult of_alone = 0;    // of the same kernel's where it does not
CUresult named = 0;       // the error whose name was asked for
int capture_mode = 0;  // of the thread: 0, the strictest, forbids to load while a graph is captured

template <typename Handle>
Handle handle(std::size_t number) {
  return std::bit_cast<Handle>(number);
}

CudaApi fake_driver() {
  CudaApi api{};
  api.get_error_name = [](CUresult error, const char** name) -> CUresult {
    named = error;
    return *name = "NO", 0;
  };
  api.get_error_string = [](CUresult, const char** text) -> CUresult { return *text = "no", 0; };
  api.driver_get_version = [](int* version) -> CUresult { return *version = driver_version, 0; };
  api.context_get_current = [](CUcontext* context) -> CUresult {
    *context = handle<CUcontext>(7);
    return 0;
  };
  api.context_push_current = [](CUcontext) -> CUresult { return 0; };
  api.context_pop_current = [](CUcontext*) -> CUresult { return 0; };
  api.thread_exchange_stream_capture_mode = [](int* mode) -> CUresult {
    std::swap(*mode, capture_mode);
    return 0;
  };
  api.library_load_data = [](CUlibrary* library, const void*, void*, void**, unsigned, void*,
                             void**, unsigned) -> CUresult {
    EXPECT_EQ(capture_mode, kStreamCaptureModeRelaxed);
    *library = handle<CUlibrary>(1);
    return 0;
  };
  api.library_unload = [](CUlibrary) -> CUresult { return 0; };
  api.library_get_kernel = [](CUkernel* kernel, CUlibrary, const char* name) -> CUresult {
    kernels.emplace_back(name);
    *kernel = handle<CUkernel>(kernels.size());
    return 0;
  };
  api.kernel_get_function = [](CUfunction* function, CUkernel kernel) -> CUresult {
    EXPECT_EQ(capture_mode, kStreamCaptureModeRelaxed);
    *function = std::bit_cast<CUfunction>(kernel);
    return 0;
  };
  api.kernel_set_attribute = [](int, int, CUkernel, CUdevice) -> CUresult { return 0; };
  api.memset_words_async = [](CUdeviceptr data, unsigned, std::size_t words, CUstream) -> CUresult {
    calls.push_back({.what = "zero", .data = data, .words = words});
    return 0;
  };
  api.launch_kernel = [](const CUlaunchConfig* config, CUfunction function, void** parameters,
                         void**) -> CUresult {
    Call call{.what = kernels[std::bit_cast<std::size_t>(function) - 1],
              .grid = config->gridDimX,
              .threads = config->blockDimX,
              .shared_bytes = config->sharedMemBytes};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const CUlaunchAttribute& attribute = config->attrs[i];
      if (attribute.id == kLaunchClusterDimension) call.cluster = attribute.value.cluster_dim.x;
      if (attribute.id == kLaunchOverlapsPrevious) call.overlaps = true;
    }
    if (call.overlaps && of_overlap != 0) return of_overlap;
    if (call.what == "pass" && of_alone != 0) return of_alone;
    call.params = *static_cast<const att::LaunchParams*>(parameters[0]);
    calls.push_back(call);
    return 0;
  };
  api.tensor_map_encode_tiled = [](void*, int, std::uint32_t, void* address, const std::uint64_t*,
                                   const std::uint64_t*, const std::uint32_t*, const std::uint32_t*,
                                   int, int, int, int) -> CUresult {
    map_sources.push_back(address);
    return 0;
  };
  return api;
}

class CudaLaunch : public testing::Test {
 protected:
  CudaLaunch() {
    calls.clear();
    kernels.clear();
    map_sources.clear();
    driver_version = 12030;
    of_overlap = of_alone = named = 0;
    spec_.head_dim_qk = spec_.head_dim_v = 64;
    recipe_ = {.symbol = "pass",
               .launches = {{.symbol = "pass_rows",
                             .threads = 128,
                             .item = WorkItem::kRows,
                             .tile = 4,
                             .zeroed = {Content::kQuerySums}},
                            {.symbol = "pass",
                             .threads = 384,
                             .shared_memory_bytes = 200000,
                             .cluster = 2,
                             .item = WorkItem::kKeyTile,
                             .tile = 128,
                             .persistent = true,
                             .tensor_maps = {{.tensor = Tensor::kOutputGradient},
                                             {.tensor = Tensor::kKeyGradient}},
                             .zeroed = {Content::kSchedulerCounter}},
                            {.symbol = "pass_queries",
                             .threads = 256,
                             .item = WorkItem::kQueryTile,
                             .tile = 64}},
               .workspace = {{.content = Content::kRowDeltas},
                             {.content = Content::kSchedulerCounter},
                             {.content = Content::kQuerySums, .length_unit = 64}}};
    params_.batch = 2;
    params_.heads = 8;
    params_.kv_heads = 4;
    params_.q_len = 100;
    params_.kv_len = 300;
    params_.d_o = pointer(0x1000);
    params_.d_k = pointer(0x2000);
    params_.d_o_stride = {100 * 8 * 64, 8 * 64, 64};
    params_.d_k_stride = {300 * 4 * 64, 4 * 64, 64};
  }
  static void* pointer(std::size_t address) { return std::bit_cast<void*>(address); }
  Status launch(void* workspace) {
    auto kernel = CudaKernel::load(api_, 0, handle<CUcontext>(7), 5, spec_, recipe_, {});
    if (!kernel.ok()) return kernel.error();
    return (*kernel)->launch(params_, workspace, nullptr);
  }

  const CudaApi api_ = fake_driver();
  AttentionSpec spec_;
  LaunchRecipe recipe_;
  att::LaunchParams params_{};
};

TEST_F(CudaLaunch, LaunchesFollowOneAnotherWithWhatTheyWantZeroed) {
  const Status status = launch(pointer(0x100000));
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(capture_mode, 0) << "the caller's again";
  std::vector<std::string> order;
  for (const Call& call : calls) order.push_back(call.what);
  ASSERT_EQ(order, (std::vector<std::string>{"zero", "pass_rows", "zero", "pass", "pass_queries"}));
  const std::size_t deltas = 2 * 8 * 100 * 4, sums = 2 * 8 * 128 * 64 * 4;
  EXPECT_EQ(calls[0].data, 0x100000 + deltas + 16);
  EXPECT_EQ(calls[0].words, sums / 4);
  EXPECT_EQ(calls[2].data, 0x100000 + deltas);
  EXPECT_EQ(calls[2].words, 4u);

  EXPECT_EQ(calls[1].grid, 2u * 8 * 100 / 4);
  EXPECT_EQ(calls[1].threads, 128u);
  EXPECT_EQ(calls[3].grid, 4u);  // 16 pairs of CTAs, of which five processors hold two
  EXPECT_EQ(calls[3].cluster, 2u);
  EXPECT_EQ(calls[3].shared_bytes, 200000u);
  EXPECT_EQ(calls[4].grid, 2u * 8 * 2);
  EXPECT_EQ(map_sources, (std::vector<const void*>{pointer(0x1000), pointer(0x2000)}));
  for (const std::size_t i : {1, 3, 4}) {
    EXPECT_EQ(calls[i].params.row_deltas, pointer(0x100000));
    EXPECT_EQ(calls[i].params.scheduler_counter, pointer(0x100000 + deltas));
    EXPECT_EQ(calls[i].params.d_q_sums, pointer(0x100000 + deltas + 16));
    EXPECT_EQ(calls[i].params.d_k_sums, nullptr);
    EXPECT_EQ(calls[i].params.d_o, pointer(0x1000));
  }
}

TEST_F(CudaLaunch, LaunchesOverlapWhereTheDriverTakesThemIntoGraphs) {
  recipe_.launches[1].overlaps_previous = true;
  const auto of_main = [&] {
    calls.clear();
    const Status status = launch(pointer(0x100000));
    EXPECT_TRUE(status.ok()) << render(status.error());
    const auto is_main = [](const Call& call) { return call.what == "pass"; };
    EXPECT_EQ(std::ranges::count_if(calls, is_main), 1);
    return *std::ranges::find_if(calls, is_main);
  };
  EXPECT_TRUE(of_main().overlaps);
  driver_version = 12020;
  EXPECT_FALSE(of_main().overlaps);
  driver_version = 12030;
  for (const CUresult refusal : {kCudaErrorNotSupported, kCudaErrorInvalidValue}) {
    of_overlap = refusal;
    const Call refused = of_main();
    EXPECT_FALSE(refused.overlaps);
    EXPECT_EQ(refused.cluster, 2u);
  }
  // Another launch would hide what happened.
  of_overlap = 719;  // CUDA_ERROR_LAUNCH_FAILED
  calls.clear();
  EXPECT_FALSE(launch(pointer(0x100000)).ok());
  EXPECT_TRUE(std::ranges::none_of(calls, [](const Call& call) { return call.what == "pass"; }));
}

TEST_F(CudaLaunch, WhatNeitherWayCanBeLaunchedHasTheFirstError) {
  recipe_.launches[1].overlaps_previous = true;
  of_overlap = kCudaErrorInvalidValue;
  of_alone = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  const Status status = launch(pointer(0x100000));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(named, kCudaErrorInvalidValue);
}

TEST_F(CudaLaunch, NothingBeginsWhereALaterLaunchCannot) {
  params_.d_k_stride.seq = -params_.d_k_stride.seq;
  const Status strides = launch(pointer(0x100000));
  ASSERT_FALSE(strides.ok());
  EXPECT_EQ(strides.error().id, kStridesUnsupported);
  params_.d_k_stride.seq = -params_.d_k_stride.seq;
  const Status missing = launch(nullptr);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().id, "workspace-missing");
  params_.batch = 1 << 16;
  params_.heads = params_.kv_heads = 1 << 12;
  params_.q_len = 1 << 8;
  const Status large = launch(pointer(0x100000));
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().id, "launch-too-large");
  EXPECT_TRUE(calls.empty());
}

TEST_F(CudaLaunch, WithoutOptionalMapsAnotherKernelRuns) {
  recipe_ = {.symbol = "pass",
             .launches = {{.symbol = "pass",
                           .otherwise = "pass_copies",
                           .item = WorkItem::kKeyTile,
                           .tile = 128,
                           .tensor_maps = {{.tensor = Tensor::kKeyGradient, .is_optional = true}}}},
             .workspace = {}};
  ASSERT_TRUE(launch(nullptr).ok());
  EXPECT_EQ(map_sources, (std::vector<const void*>{pointer(0x2000)}));
  params_.d_k_stride.seq = 4;
  ASSERT_TRUE(launch(nullptr).ok());
  EXPECT_EQ(map_sources.size(), 1u);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].what, "pass");
  EXPECT_EQ(calls[1].what, "pass_copies");
}

}  // namespace
}  // namespace attune
