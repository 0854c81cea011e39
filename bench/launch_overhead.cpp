// What a launch costs the host beyond the driver's own launch: batches of both in turn, so short
// that the GPU never makes the host wait. Needs a GPU and NVRTC.
#include <attune/attune.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/tensor_maps.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatch = 16;  // fits into the driver's queue many times, whatever a kernel takes
constexpr int kRounds = 1000;

using Call = std::function<void()>;

struct Times {
  double median, least;
};

Times summary(std::vector<double> samples) {
  std::ranges::sort(samples);
  return {samples[samples.size() / 2], samples.front()};
}

// Nanoseconds a call of one batch, which begins with an empty queue.
double batch_ns(const Call& call, const Call& drain) {
  drain();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kBatch; ++i) call();
  const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
  return spent.count() / kBatch;
}

Times alone_ns(const Call& call) {
  std::vector<double> samples;
  for (int round = 0; round < kRounds; ++round) samples.push_back(batch_ns(call, [] {}));
  return summary(std::move(samples));
}

// Two calls in the same rounds, each first in every other: the clock of the host, and who else is
// on it, are the same for both.
struct Compared {
  Times driver, ours, beyond;
};
Compared compare_ns(const Call& driver, const Call& ours, const Call& drain) {
  std::vector<double> of_driver, of_ours, beyond;
  for (int round = 0; round < kRounds; ++round) {
    const bool driver_first = round % 2 == 0;
    const double first = batch_ns(driver_first ? driver : ours, drain);
    const double second = batch_ns(driver_first ? ours : driver, drain);
    of_driver.push_back(driver_first ? first : second);
    of_ours.push_back(driver_first ? second : first);
    beyond.push_back(of_ours.back() - of_driver.back());
  }
  drain();
  const Times d = summary(of_driver), o = summary(of_ours);
  return {d, o, {summary(std::move(beyond)).median, o.least - d.least}};
}

std::string text(const Times& times) {
  return fmt::format("{:.0f} ({:.0f})", times.median, times.least);
}

// An empty kernel that takes as many bytes of parameters as a forward kernel.
Result<CUfunction> empty_kernel(const CudaApi& api, Target target) {
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_nvrtc_compiler());
  const std::string source = fmt::format(
      "struct Bytes {{ char bytes[{}]; }};\n"
      "extern \"C\" __global__ void empty(const Bytes bytes) {{}}\n",
      sizeof(att::ForwardParams));
  ATT_TRY(const CompiledKernel code, compiler->compile(source, "empty", target));
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  ATT_CHECK(cuda_status(
      api,
      api.library_load_data(&library, code.image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "cuLibraryLoadData"));
  ATT_CHECK(
      cuda_status(api, api.library_get_kernel(&kernel, library, "empty"), "cuLibraryGetKernel"));
  ATT_CHECK(cuda_status(api, api.kernel_get_function(&function, kernel), "cuKernelGetFunction"));
  return function;
}

#define ATT_BENCH_CHECK(call)                                                \
  if ((call) != ATT_OK) return Error {                                       \
      .kind = ErrorKind::kFailed, .id = "bench", .message = att_last_error() \
    }

Status time_spec(Device& device, att_runtime* runtime, const char* name, const char* yaml,
                 const Call& launch_empty) {
  const att_shape shape = {1, 1, 1, 64, 64};
  att_spec* spec = nullptr;
  att_kernel* kernel = nullptr;
  ATT_BENCH_CHECK(att_spec_from_yaml(yaml, &spec));
  ATT_BENCH_CHECK(att_kernel_get(runtime, spec, &shape, &kernel));
  ATT_TRY(void* buffer, device.allocate(1 << 20));
  ATT_CHECK(device.fill(buffer, 0, 1 << 20));
  const void* tensors[] = {buffer};
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = shape;
  args.q = args.k = args.v = buffer;
  args.o = static_cast<char*>(buffer) + (1 << 19);
  args.workspace = static_cast<char*>(buffer) + (1 << 18);
  args.tensors = tensors;
  ATT_BENCH_CHECK(att_forward(kernel, &args, nullptr));
  const Times get = alone_ns([&] {
    att_kernel* same = nullptr;
    (void)att_kernel_get(runtime, spec, &shape, &same);
    att_kernel_destroy(same);
  });
  const Compared both = compare_ns(
      launch_empty, [&] { (void)att_forward(kernel, &args, nullptr); },
      [&] { (void)device.synchronize(); });
  ATT_CHECK(device.synchronize());
  fmt::print("{:<10} {:>12} {:>14} {:>14} {:>14}  {}\n", name, text(get), text(both.driver),
             text(both.ours), text(both.beyond), att_kernel_plan(kernel));
  att_kernel_destroy(kernel);
  att_spec_destroy(spec);
  device.free(buffer);
  return ok_status();
}

Status run() {
  ATT_TRY(const CudaApi* api, cuda_api());
  ATT_TRY(const std::unique_ptr<Device> device, open_cuda_device(0));
  ATT_TRY(const CUfunction empty, empty_kernel(*api, device->facts().target));

  att::LaunchParams params{};
  void* arguments[] = {&params};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 128;
  config.blockDimY = config.blockDimZ = 1;
  ATT_CHECK(cuda_status(*api, api->launch_kernel(&config, empty, arguments, nullptr),
                        "cuLaunchKernelEx"));
  const Call launch_empty = [&] { (void)api->launch_kernel(&config, empty, arguments, nullptr); };

  // A descriptor of [64 x 64] bf16.
  AttentionSpec spec;
  spec.head_dim_qk = spec.head_dim_v = 64;
  ATT_TRY(void* buffer, device->allocate(1 << 16));
  params.q = buffer;
  params.batch = params.heads = params.kv_heads = 1;
  params.q_len = params.kv_len = 64;
  params.q_stride = {64 * 64, 64, 64};
  TensorMap map;
  const TensorMapRecipe recipe;
  ATT_CHECK(encode_tensor_map(*api, spec, recipe, params, &map));
  const Times encode = alone_ns([&] { (void)encode_tensor_map(*api, spec, recipe, params, &map); });
  device->free(buffer);

  fmt::print("{}\n", device->identity());
  fmt::print("nanoseconds a call, median (least) of {} batches of {}\n", kRounds, kBatch);
  fmt::print("driver: cuLaunchKernelEx of an empty kernel with {} bytes of parameters, in turn\n",
             sizeof(att::ForwardParams));
  fmt::print("one cuTensorMapEncodeTiled: {}\n\n", text(encode));
  fmt::print("{:<10} {:>12} {:>14} {:>14} {:>14}  plan\n", "spec", "get", "driver", "forward",
             "beyond driver");
  att_runtime* runtime = nullptr;
  const att_runtime_options options = {sizeof options, "cuda:0", ""};
  ATT_BENCH_CHECK(att_runtime_create(&options, &runtime));
  ATT_CHECK(time_spec(*device, runtime, "causal",
                      "attune: 1\nname: c\ndtype: bf16\nhead_dim: 64\nmask: causal\n",
                      launch_empty));
  ATT_CHECK(time_spec(*device, runtime, "document",
                      "attune: 1\nname: d\ndtype: bf16\nhead_dim: 64\nmask: document(doc)\n"
                      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n",
                      launch_empty));
  att_runtime_destroy(runtime);
  return ok_status();
}

}  // namespace
}  // namespace attune

int main() {
  const attune::Status status = attune::run();
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", render(status.error()));
  return attune::exit_code(status.error().kind);
}
