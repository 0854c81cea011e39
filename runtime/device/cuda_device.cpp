#include "runtime/device/cuda_device.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <optional>

#include "runtime/device/cuda_context.hpp"
#include "runtime/device/cuda_function.hpp"
#include "runtime/device/cuda_kernel.hpp"
#include "runtime/device/cuda_read.hpp"
#include "runtime/device/nvml.hpp"
#include "runtime/device/residue_kernel.hpp"

namespace attune {
namespace {

// The target whose code this compute capability runs: code of X.y runs on X.z, z >= y.
std::optional<Target> target_of(int major, int minor) {
  switch (major) {
    case 8:
      return minor >= 9 ? Target::kSm89 : minor >= 6 ? Target::kSm86 : Target::kSm80;
    case 9:
      return Target::kSm90a;
    case 10:
      return Target::kSm100;
    case 12:
      return Target::kSm120;
    default:
      return std::nullopt;
  }
}

// A pair of events, destroyed at the end of the scope.
class EventPair {
 public:
  explicit EventPair(const CudaApi& api) : api_(api) {}
  ~EventPair() {
    if (begin != nullptr) api_.event_destroy(begin);
    if (end != nullptr) api_.event_destroy(end);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;
  CUevent begin = nullptr;
  CUevent end = nullptr;

 private:
  const CudaApi& api_;
};

}  // namespace

Result<std::unique_ptr<Device>> CudaDevice::open(const CudaApi& api, CUdevice device,
                                                 CUcontext context, bool owned) {
  std::unique_ptr<CudaDevice> opened(new CudaDevice(api, device, context, owned));
  ATT_CHECK(opened->read_facts());
  return std::unique_ptr<Device>(std::move(opened));
}

CudaDevice::~CudaDevice() {
  rows_outside_.reset();  // while there is the context
  if (owned_) api_.primary_context_release(device_);
}

Status CudaDevice::read_facts() {
  std::array<char, 256> name{};
  ATT_CHECK(cuda_status(api_, api_.device_get_name(name.data(), name.size() - 1, device_),
                        "cuDeviceGetName"));
  Status status = ok_status();
  const auto attribute = [&](int id) {
    int value = 0;
    if (status.ok()) {
      status =
          cuda_status(api_, api_.device_get_attribute(&value, id, device_), "cuDeviceGetAttribute");
    }
    return value;
  };
  const int major = attribute(cuda_attribute::kComputeMajor);
  const int minor = attribute(cuda_attribute::kComputeMinor);
  ATT_CHECK(status);
  const std::optional<Target> target = target_of(major, minor);
  if (!target) {
    return Error{
        .kind = ErrorKind::kUnsupported,
        .id = "gpu-unsupported",
        .message = fmt::format("{} has compute capability {}.{}", name.data(), major, minor),
        .hint = "Attune runs on 8.0 to 12.x"};
  }
  // What the driver does not tell (the matrix rate) is the published part's, a processor and clock.
  const DeviceFacts published = device_facts(*target);
  facts_ = published;
  facts_.name = name.data();
  facts_.processor_count = attribute(cuda_attribute::kProcessorCount);
  facts_.shared_memory_per_block_bytes = attribute(cuda_attribute::kSharedBytesPerBlockOptin);
  facts_.shared_memory_per_processor_bytes = attribute(cuda_attribute::kSharedBytesPerProcessor);
  facts_.registers_per_processor = attribute(cuda_attribute::kRegistersPerProcessor);
  facts_.l2_bytes = attribute(cuda_attribute::kL2Bytes);
  facts_.clock_ghz = attribute(cuda_attribute::kClockRate) * 1e-6;
  const double memory_ghz = attribute(cuda_attribute::kMemoryClockRate) * 1e-6;
  const double bus_bytes = attribute(cuda_attribute::kMemoryBusWidth) / 8.0;
  // Two transfers a clock.
  if (memory_ghz > 0 && bus_bytes > 0) facts_.memory_gb_per_s = 2 * memory_ghz * bus_bytes;
  if (facts_.clock_ghz > 0) {
    facts_.matrix_tflops = published.matrix_tflops * facts_.processor_count * facts_.clock_ghz /
                           (published.processor_count * published.clock_ghz);
  } else {
    facts_.clock_ghz = published.clock_ghz;
  }
  ATT_CHECK(status);

  std::size_t memory = 0;
  ATT_CHECK(cuda_status(api_, api_.device_total_mem(&memory, device_), "cuDeviceTotalMem"));
  facts_.memory_bytes = static_cast<std::int64_t>(memory);
  std::array<char, 32> bus_id{};
  ATT_CHECK(cuda_status(api_, api_.device_get_pci_bus_id(bus_id.data(), bus_id.size() - 1, device_),
                        "cuDeviceGetPCIBusId"));
  pci_bus_id_ = bus_id.data();

  std::string driver = nvidia_driver_version();
  if (driver.empty()) {
    int version = 0;
    ATT_CHECK(cuda_status(api_, api_.driver_get_version(&version), "cuDriverGetVersion"));
    driver = fmt::format("of CUDA {}.{}", version / 1000, version % 1000 / 10);
  }
  identity_ = fmt::format("{} / {} SMs / {} MiB / driver {}", facts_.name, facts_.processor_count,
                          facts_.memory_bytes >> 20, driver);
  return ok_status();
}

std::string CudaDevice::unit() const {
  const std::string uuid = nvidia_uuid(pci_bus_id_);
  return uuid.empty() ? pci_bus_id_ : uuid;
}

std::shared_ptr<void> CudaDevice::spare_captures() {
  return std::make_shared<RelaxedCapture>(api_);
}

std::string CudaDevice::conditions() const { return nvidia_conditions(pci_bus_id_); }

Result<std::unique_ptr<LoadedKernel>> CudaDevice::load(const AttentionSpec& spec,
                                                       const KernelPlan& plan,
                                                       std::span<const std::uint8_t> image) {
  ATT_TRY(auto kernel, load_recipe(worked_spec(spec, plan), launch_recipe(spec, plan), image));
  return launched_whole(std::move(kernel), plan.residues);
}

Result<std::unique_ptr<LoadedKernel>> CudaDevice::load_recipe(const AttentionSpec& spec,
                                                              const LaunchRecipe& recipe,
                                                              std::span<const std::uint8_t> image) {
  return CudaKernel::load(api_, device_, context_, facts_.processor_count, spec, recipe, image);
}

Result<std::unique_ptr<LoadedFunction>> CudaDevice::load_function(
    const FunctionRecipe& recipe, std::span<const std::uint8_t> image) {
  return CudaFunction::load(api_, context_, recipe, image);
}

Status CudaDevice::fill_rows_outside(const RowsOutside& rows, StreamHandle stream) {
  return rows_outside_->fill(rows, stream);
}

Result<void*> CudaDevice::allocate(std::size_t bytes) {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  CUdeviceptr pointer = 0;
  ATT_CHECK(cuda_status(api_, api_.mem_alloc(&pointer, bytes), "cuMemAlloc"));
  return std::bit_cast<void*>(pointer);
}

void CudaDevice::free(void* pointer) {
  if (pointer == nullptr) return;
  const ScopedContext current(api_, context_);
  if (current.status().ok()) api_.mem_free(device_address(pointer));
}

Status CudaDevice::copy_to_device(void* to, const void* from, std::size_t bytes) {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  return cuda_status(api_, api_.memcpy_to_device(device_address(to), from, bytes), "cuMemcpyHtoD");
}

Status CudaDevice::copy_to_host(void* to, const void* from, std::size_t bytes) {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  return cuda_status(api_, api_.memcpy_to_host(to, device_address(from), bytes), "cuMemcpyDtoH");
}

Status CudaDevice::copy_to_host_behind(StreamHandle stream, std::span<const HostCopy> copies) {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  return copy_behind(api_, static_cast<CUstream>(stream), copies);
}

Status CudaDevice::fill(void* to, std::uint8_t byte, std::size_t bytes) {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  return cuda_status(api_, api_.memset_bytes(device_address(to), byte, bytes), "cuMemsetD8");
}

Status CudaDevice::synchronize() {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  return cuda_status(api_, api_.context_synchronize(), "cuCtxSynchronize");
}

Result<double> CudaDevice::time_us(const std::function<Status(StreamHandle)>& work) {
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  EventPair events(api_);
  ATT_CHECK(cuda_status(api_, api_.event_create(&events.begin, 0), "cuEventCreate"));
  ATT_CHECK(cuda_status(api_, api_.event_create(&events.end, 0), "cuEventCreate"));
  ATT_CHECK(cuda_status(api_, api_.event_record(events.begin, nullptr), "cuEventRecord"));
  ATT_CHECK(work(nullptr));
  ATT_CHECK(cuda_status(api_, api_.event_record(events.end, nullptr), "cuEventRecord"));
  ATT_CHECK(cuda_status(api_, api_.event_synchronize(events.end), "cuEventSynchronize"));
  float milliseconds = 0;
  ATT_CHECK(cuda_status(api_, api_.event_elapsed_time(&milliseconds, events.begin, events.end),
                        "cuEventElapsedTime"));
  return milliseconds * 1000.0;
}

Result<int> cuda_device_count() {
  ATT_TRY(const CudaApi* api, cuda_api());
  int count = 0;
  ATT_CHECK(cuda_status(*api, api->device_get_count(&count), "cuDeviceGetCount"));
  return count;
}

Result<std::unique_ptr<Device>> open_cuda_device(int ordinal) {
  ATT_TRY(const CudaApi* api, cuda_api());
  ATT_TRY(const int count, cuda_device_count());
  if (ordinal < 0 || ordinal >= count) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "gpu-missing",
                 .message = fmt::format("there is no CUDA device {}: {} found", ordinal, count)};
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  ATT_CHECK(cuda_status(*api, api->device_get(&device, ordinal), "cuDeviceGet"));
  ATT_CHECK(
      cuda_status(*api, api->primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain"));
  if (Status status = cuda_status(*api, api->context_set_current(context), "cuCtxSetCurrent");
      !status.ok()) {
    api->primary_context_release(device);
    return std::move(status).error();
  }
  return CudaDevice::open(*api, device, context, true);
}

Result<std::unique_ptr<Device>> open_current_cuda_device() {
  ATT_TRY(const CudaApi* api, cuda_api());
  CUcontext context = nullptr;
  CUdevice device = 0;
  ATT_CHECK(cuda_status(*api, api->context_get_current(&context), "cuCtxGetCurrent"));
  if (context == nullptr) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "no-current-context",
                 .message = "this thread has no current CUDA context"};
  }
  ATT_CHECK(cuda_status(*api, api->context_get_device(&device), "cuCtxGetDevice"));
  return CudaDevice::open(*api, device, context, false);
}

}  // namespace attune
