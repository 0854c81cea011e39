// What a kernel without a recipe asks of the CUDA driver.
#include "runtime/device/cuda_function.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace attune {
namespace {

struct Params {
  int numbers[3];
};

// What the fake driver was asked for last.
struct Asked {
  std::string symbol;
  CUlaunchConfig config{};
  Params params{};
  int launches = 0, unloads = 0, pushes = 0;
};
Asked asked;
std::size_t current_context = 7;
int capture_mode = 0;  // of the thread: 0, the strictest, forbids to load while a graph is captured

template <typename Handle>
Handle handle(std::size_t number) {
  return std::bit_cast<Handle>(number);
}

CudaApi fake_driver() {
  CudaApi api{};
  api.context_get_current = [](CUcontext* context) -> CUresult {
    *context = handle<CUcontext>(current_context);
    return 0;
  };
  api.context_push_current = [](CUcontext) -> CUresult {
    ++asked.pushes;
    return 0;
  };
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
  api.library_unload = [](CUlibrary) -> CUresult {
    ++asked.unloads;
    return 0;
  };
  api.library_get_kernel = [](CUkernel* kernel, CUlibrary, const char* name) -> CUresult {
    asked.symbol = name;
    *kernel = handle<CUkernel>(3);
    return 0;
  };
  api.kernel_get_function = [](CUfunction* function, CUkernel kernel) -> CUresult {
    EXPECT_EQ(capture_mode, kStreamCaptureModeRelaxed);
    *function = std::bit_cast<CUfunction>(kernel);
    return 0;
  };
  api.launch_kernel = [](const CUlaunchConfig* config, CUfunction function, void** parameters,
                         void**) -> CUresult {
    if (function != handle<CUfunction>(3)) return 1;
    ++asked.launches;
    asked.config = *config;
    std::memcpy(&asked.params, parameters[0], sizeof(Params));
    return 0;
  };
  return api;
}

TEST(CudaFunction, LaunchesACtaAnItem) {
  asked = {};
  current_context = 7;
  const CudaApi api = fake_driver();
  {
    const auto function =
        CudaFunction::load(api, handle<CUcontext>(7), {.symbol = "append", .threads = 96}, {});
    ASSERT_TRUE(function.ok()) << render(function.error());
    EXPECT_EQ(asked.symbol, "append");
    EXPECT_EQ(capture_mode, 0) << "the caller's again";
    const int pushed = asked.pushes;
    const Params params = {{1, 2, 3}};
    ASSERT_TRUE((*function)->launch(&params, 70000, handle<void*>(5)).ok());
    EXPECT_EQ(asked.pushes, pushed) << "the context is current already";
    EXPECT_EQ(asked.config.gridDimX, 70000u);
    EXPECT_EQ(asked.config.gridDimY * asked.config.gridDimZ, 1u);
    EXPECT_EQ(asked.config.blockDimX, 96u);
    EXPECT_EQ(asked.config.blockDimY * asked.config.blockDimZ, 1u);
    EXPECT_EQ(asked.config.hStream, handle<CUstream>(5));
    EXPECT_EQ(std::memcmp(&asked.params, &params, sizeof params), 0);
    current_context = 8;
    ASSERT_TRUE((*function)->launch(&params, 1, nullptr).ok());
    EXPECT_EQ(asked.pushes, pushed + 1) << "another context is current";
    EXPECT_EQ(asked.launches, 2);
    EXPECT_EQ(asked.unloads, 0);
  }
  EXPECT_EQ(asked.unloads, 1);
}

}  // namespace
}  // namespace attune
