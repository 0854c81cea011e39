#include "runtime/device/cuda_read.hpp"

#include <string>

#include "runtime/device/cuda_context.hpp"

namespace attune {
namespace {

Status check_not_captured(const CudaApi& api, CUstream stream) {
  int capture = kStreamCaptureNone;
  const CUresult result = api.stream_is_capturing(stream, &capture);
  // The default stream waits for streams of which one is being captured.
  if (result != kCudaErrorStreamCaptureImplicit) {
    ATT_CHECK(cuda_status(api, result, "cuStreamIsCapturing"));
    if (capture == kStreamCaptureNone) return ok_status();
  }
  return Error{.kind = ErrorKind::kUnsupported,
               .id = std::string(kStreamCaptured),
               .message = "the stream is being captured into a graph, and cannot be waited for"};
}

}  // namespace

Status copy_behind(const CudaApi& api, CUstream stream, std::span<const HostCopy> copies) {
  ATT_CHECK(check_not_captured(api, stream));
  const RelaxedCapture relaxed(api);
  Status copied = ok_status();
  for (const HostCopy& copy : copies) {
    copied = cuda_status(
        api, api.memcpy_to_host_async(copy.to, device_address(copy.from), copy.bytes, stream),
        "cuMemcpyDtoHAsync");
    if (!copied.ok()) break;
  }
  const Status waited = cuda_status(api, api.stream_synchronize(stream), "cuStreamSynchronize");
  return copied.ok() ? waited : copied;
}

}  // namespace attune
