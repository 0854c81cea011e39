// What reading behind a stream's work asks of the CUDA driver, and in which order.
#include "runtime/device/cuda_read.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

namespace attune {
namespace {

// What the fake driver is asked for, in order, and what it answers.
std::vector<std::string> calls;
int capture_mode, capture_status, failing_copy;
CUresult capture_result;

template <typename Handle>
Handle handle(std::size_t number) {
  return std::bit_cast<Handle>(number);
}

void note(const std::string& call, CUstream stream) {
  calls.push_back(call + " " + std::to_string(std::bit_cast<std::size_t>(stream)) +
                  (capture_mode == kStreamCaptureModeRelaxed ? " relaxed" : ""));
}

CudaApi fake_driver() {
  calls.clear();
  capture_mode = 1;
  capture_status = kStreamCaptureNone;
  capture_result = kCudaSuccess;
  failing_copy = -1;
  CudaApi api{};
  api.get_error_name = [](CUresult, const char** name) -> CUresult { return *name = "NO", 0; };
  api.get_error_string = [](CUresult, const char** text) -> CUresult { return *text = "no", 0; };
  api.thread_exchange_stream_capture_mode = [](int* mode) -> CUresult {
    std::swap(*mode, capture_mode);
    return 0;
  };
  api.stream_is_capturing = [](CUstream stream, int* status) -> CUresult {
    note("capturing", stream);
    *status = capture_status;
    return capture_result;
  };
  api.memcpy_to_host_async = [](void* to, CUdeviceptr from, std::size_t bytes,
                                CUstream stream) -> CUresult {
    note("copy", stream);
    if (failing_copy-- == 0) return 1;
    static_cast<char*>(to)[bytes - 1] = static_cast<char>(from);
    return 0;
  };
  api.stream_synchronize = [](CUstream stream) -> CUresult {
    note("wait", stream);
    return 0;
  };
  return api;
}

class CudaRead : public testing::Test {
 protected:
  Status read() { return copy_behind(api_, handle<CUstream>(5), copies_); }

  const CudaApi api_ = fake_driver();
  char first_[4] = {}, second_[2] = {};
  const std::vector<HostCopy> copies_ = {{first_, handle<void*>(100), sizeof first_},
                                         {second_, handle<void*>(101), sizeof second_}};
};

TEST_F(CudaRead, CopiesInTheStreamsOrderAndWaits) {
  const Status status = read();
  ASSERT_TRUE(status.ok()) << render(status.error());
  EXPECT_EQ(first_[3], 100);
  EXPECT_EQ(second_[1], 101);
  EXPECT_EQ(calls, (std::vector<std::string>{"capturing 5", "copy 5 relaxed", "copy 5 relaxed",
                                             "wait 5 relaxed"}));
  EXPECT_EQ(capture_mode, 1) << "it is the caller's again";
}

// Anything more than the question would end the capture.
TEST_F(CudaRead, AsksNothingMoreOfAStreamUnderCapture) {
  for (const auto& [result, status] : {std::pair{kCudaSuccess, 1},
                                       {kCudaSuccess, 2},
                                       {kCudaErrorStreamCaptureImplicit, kStreamCaptureNone}}) {
    calls.clear();
    capture_result = result;
    capture_status = status;
    const Status refused = read();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().id, kStreamCaptured);
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(calls, std::vector<std::string>{"capturing 5"});
    EXPECT_EQ(capture_mode, 1);
  }
  capture_result = 400;
  const Status failed = read();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().id, "cuda-error");
}

// The host's memory is the caller's again when it returns.
TEST_F(CudaRead, WaitsWhenACopyFails) {
  failing_copy = 1;
  const Status status = read();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().id, "cuda-error");
  EXPECT_EQ(calls.back(), "wait 5 relaxed");
  EXPECT_EQ(capture_mode, 1);
}

}  // namespace
}  // namespace attune
