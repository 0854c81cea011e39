// What filling the rows of no sequence asks of the CUDA driver.
#include "runtime/device/rows_outside.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

namespace attune {
namespace {

struct Asked {
  int loads = 0, launches = 0;
  CUdeviceptr at = 0;
  unsigned word = 0;
  std::size_t words = 0;
  std::uint32_t sizes[5] = {};  // last, outer, rows, inner, word
};
Asked asked;
CUresult of_load = 0;

CudaApi fake_driver() {
  asked = {};
  CudaApi api{};
  api.get_error_name = [](CUresult, const char** name) -> CUresult { return *name = "NO", 0; };
  api.get_error_string = [](CUresult, const char** text) -> CUresult { return *text = "no", 0; };
  api.context_get_current = [](CUcontext* context) -> CUresult { return *context = nullptr, 0; };
  api.context_push_current = [](CUcontext) -> CUresult { return 0; };
  api.context_pop_current = [](CUcontext*) -> CUresult { return 0; };
  api.thread_exchange_stream_capture_mode = [](int*) -> CUresult { return 0; };
  api.library_load_data = [](CUlibrary* library, const void* code, void*, void**, unsigned, void*,
                             void**, unsigned) -> CUresult {
    ++asked.loads;
    EXPECT_NE(std::strstr(static_cast<const char*>(code), ".entry attune_rows_outside("), nullptr);
    *library = std::bit_cast<CUlibrary>(std::size_t{1});
    return of_load;
  };
  api.library_unload = [](CUlibrary) -> CUresult { return 0; };
  api.library_get_kernel = [](CUkernel*, CUlibrary, const char*) -> CUresult { return 0; };
  api.kernel_get_function = [](CUfunction*, CUkernel) -> CUresult { return 0; };
  api.launch_kernel = [](const CUlaunchConfig*, CUfunction, void** parameters, void**) -> CUresult {
    ++asked.launches;
    std::memcpy(asked.sizes, static_cast<char*>(parameters[0]) + 16, sizeof asked.sizes);
    return 0;
  };
  api.memset_words_async = [](CUdeviceptr at, unsigned word, std::size_t words,
                              CUstream) -> CUresult {
    asked.at = at;
    asked.word = word;
    asked.words = words;
    return 0;
  };
  return api;
}

RowsOutside rows_outside(const std::int32_t* offsets, std::int64_t rows) {
  return {.at = std::bit_cast<std::uint32_t*>(std::size_t{64}),
          .offsets = offsets,
          .last = 3,
          .word = 9,
          .outer = 2,
          .rows = rows,
          .inner = 4};
}

const std::int32_t kOffsets[4] = {};

TEST(RowsOutside, AKernelThatIsLoadedOnce) {
  of_load = 0;
  const CudaApi api = fake_driver();
  CudaRowsOutside outside(api, nullptr);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(outside.fill(rows_outside(kOffsets, 10), nullptr).ok());
  }
  EXPECT_EQ(asked.loads, 1);
  EXPECT_EQ(asked.launches, 2);
  EXPECT_EQ(asked.words, 0u);
  const std::uint32_t wanted[5] = {3, 2, 10, 4, 9};
  EXPECT_EQ(std::memcmp(asked.sizes, wanted, sizeof wanted), 0);
}

TEST(RowsOutside, AllIsFilledWhereTheDriverTakesNoKernel) {
  of_load = 222;  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
  const CudaApi api = fake_driver();
  CudaRowsOutside outside(api, nullptr);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(outside.fill(rows_outside(kOffsets, 10), nullptr).ok());
  }
  EXPECT_EQ(asked.loads, 2);
  EXPECT_EQ(asked.launches, 0);
  EXPECT_EQ(asked.at, 64u);
  EXPECT_EQ(asked.word, 9u);
  EXPECT_EQ(asked.words, 80u);
}

TEST(RowsOutside, AFailureIsNotRememberedForEver) {
  of_load = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  const CudaApi api = fake_driver();
  CudaRowsOutside outside(api, nullptr);
  const auto fill = [&] { return outside.fill(rows_outside(kOffsets, 10), nullptr).ok(); };
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(fill());
  EXPECT_EQ(asked.loads, 7) << "at powers of two";
  EXPECT_EQ(asked.launches, 0);
  of_load = 0;
  for (int i = 100; i < 130; ++i) EXPECT_TRUE(fill());
  EXPECT_EQ(asked.loads, 8);
  EXPECT_EQ(asked.launches, 3);
}

TEST(RowsOutside, AllIsFilledWithoutOffsetsAndBeyond32Bits) {
  of_load = 0;
  const CudaApi api = fake_driver();
  CudaRowsOutside outside(api, nullptr);
  EXPECT_TRUE(outside.fill(rows_outside(nullptr, 10), nullptr).ok());
  EXPECT_EQ(asked.words, 80u);
  EXPECT_TRUE(outside.fill(rows_outside(kOffsets, std::int64_t{1} << 28), nullptr).ok());
  EXPECT_EQ(asked.words, std::size_t{1} << 31);
  EXPECT_EQ(asked.loads + asked.launches, 0);
}

}  // namespace
}  // namespace attune
