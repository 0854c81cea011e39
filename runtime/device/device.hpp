// What runs kernels: a CUDA device through the driver API, or this machine's cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/plan.hpp"
#include "generator/support/result.hpp"
#include "templates/params.h"

namespace attune {

// A CUstream; null: the default stream. Ignored by the CPU device, which runs at once.
using StreamHandle = void*;

// Error id of a launch whose strides this plan cannot take and another plan of the spec can.
inline constexpr std::string_view kStridesUnsupported = "strides-unsupported";

// Code that is ready to launch on one device (one context). Immutable; launches are thread-safe.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  // Enqueues all launches of the recipe: no allocation, no synchronisation. `workspace` is device
  // memory of workspace_bytes(shape), 16-byte aligned, not shared by launches that may overlap;
  // null when 0.
  virtual Status launch(const att::LaunchParams& params, void* workspace,
                        StreamHandle stream) const = 0;
  virtual std::size_t workspace_bytes(const ProblemShape& shape) const = 0;
};

// A kernel that no recipe describes: it takes a struct of its own, no workspace, and the caller
// counts its items.
struct FunctionRecipe {
  std::string symbol;
  int threads = 1;  // of a CTA, which an item is; without meaning on the CPU, where it is a call
};
// Ready to launch on one device (one context). Immutable; launches are thread-safe.
class LoadedFunction {
 public:
  virtual ~LoadedFunction() = default;
  // Enqueues items [0, items), 1 at least: no allocation, no synchronisation. `params` is read
  // before it returns, as many bytes as the kernel declares.
  virtual Status launch(const void* params, int items, StreamHandle stream) const = 0;
};

// Error id of what would have to wait for a stream that is being captured into a graph.
inline constexpr std::string_view kStreamCaptured = "stream-captured";

// Bytes of the device's memory on their way to the host's.
struct HostCopy {
  void* to;
  const void* from;
  std::size_t bytes;
};

struct RowsOutside;

class Device {
 public:
  virtual ~Device() = default;
  // The CPU's are measured at the first call.
  virtual const DeviceFacts& facts() const = 0;
  // Of the facts, at no cost.
  virtual Target target() const { return facts().target; }
  // What a measurement depends on: "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159".
  virtual std::string identity() const = 0;
  // Names this very unit among all of the machine (a GPU's UUID, "cpu"), for a lock; empty: it need
  // not be had alone.
  virtual std::string unit() const { return {}; }
  // As long as what it returns is there, this thread may load code while a graph is captured, by
  // another thread or by itself.
  [[nodiscard]] virtual std::shared_ptr<void> spare_captures() { return nullptr; }
  // JSON of what moves a measurement at this moment: clocks, temperature, power, throttle reasons.
  virtual std::string conditions() const { return "{}"; }
  virtual Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec,
                                                     const KernelPlan& plan,
                                                     std::span<const std::uint8_t> image) = 0;
  // The same for code that no plan describes; a device that has no use for it says kUnsupported.
  virtual Result<std::unique_ptr<LoadedKernel>> load_recipe(const AttentionSpec& spec,
                                                            const LaunchRecipe& recipe,
                                                            std::span<const std::uint8_t> image);
  virtual Result<std::unique_ptr<LoadedFunction>> load_function(
      const FunctionRecipe& recipe, std::span<const std::uint8_t> image);

  // In the order of `stream`: no synchronisation, and no allocation but at the first call.
  virtual Status fill_rows_outside(const RowsOutside& rows, StreamHandle stream);

  // Memory and time, for the tuner, the command and the tests; a host application brings its own.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void free(void* pointer) = 0;
  virtual Status copy_to_device(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  // Copies what stands there once all that was enqueued on `stream` is done, and waits for it: on
  // the CPU at once. kUnsupported kStreamCaptured, and the capture goes on, where the stream is
  // being captured; captures of other streams do not mind.
  virtual Status copy_to_host_behind(StreamHandle stream, std::span<const HostCopy> copies);
  virtual Status fill(void* to, std::uint8_t byte, std::size_t bytes) = 0;
  virtual Status synchronize() = 0;
  // Microseconds of `work` on the device's own clock (CUDA events; steady_clock on the CPU).
  virtual Result<double> time_us(const std::function<Status(StreamHandle)>& work) = 0;
};

// CUDA device `ordinal` (its primary context, made current on this thread). kUnavailable without
// driver or GPU.
Result<std::unique_ptr<Device>> open_cuda_device(int ordinal);
// The device of this thread's current CUDA context, in that context, which must outlive it.
// kUnavailable when there is no current context.
Result<std::unique_ptr<Device>> open_current_cuda_device();
Result<int> cuda_device_count();
Result<std::unique_ptr<Device>> open_cpu_device();
// "cuda:0", "cpu"; empty: the current CUDA context's device, else cuda:0, else the CPU.
Result<std::unique_ptr<Device>> open_device(std::string_view name);

}  // namespace attune
