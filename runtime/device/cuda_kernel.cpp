#include "runtime/device/cuda_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "runtime/device/cuda_context.hpp"
#include "runtime/device/tensor_maps.hpp"
#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

constexpr std::size_t kMaxTensorMaps = 8;
constexpr int kRangePassThreads = 128;  // templates/kernels/block_ranges.cuh: one warp a pair
constexpr int kRangePassPairs = kRangePassThreads / 32;
constexpr int kPortableClusterSize = 8;

CUdeviceptr address(const void* pointer) { return std::bit_cast<CUdeviceptr>(pointer); }

}  // namespace

Result<std::unique_ptr<LoadedKernel>> CudaKernel::load(const CudaApi& api, CUdevice device,
                                                       CUcontext context, int processor_count,
                                                       const AttentionSpec& spec,
                                                       const LaunchRecipe& recipe,
                                                       std::span<const std::uint8_t> image) {
  std::unique_ptr<CudaKernel> kernel(new CudaKernel(api, context, processor_count, spec, recipe));
  ATT_CHECK(kernel->open(device, image));
  return std::unique_ptr<LoadedKernel>(std::move(kernel));
}

CudaKernel::~CudaKernel() {
  if (library_ == nullptr) return;
  const ScopedContext current(api_, context_);
  if (current.status().ok()) api_.library_unload(library_);
}

// The library belongs to no context; asking for the function loads it into this one now, because
// the driver cannot do so at the first launch when a graph is being captured.
Status CudaKernel::open(CUdevice device, std::span<const std::uint8_t> image) {
  if (recipe_.tensor_maps.size() > kMaxTensorMaps) {
    return Error{.id = "launch-recipe",
                 .message = "a kernel takes more TMA descriptors than known"};
  }
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  ATT_CHECK(cuda_status(
      api_,
      api_.library_load_data(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "cuLibraryLoadData"));
  const auto function = [&](const char* name, CUkernel* kernel, CUfunction* out) -> Status {
    ATT_CHECK(
        cuda_status(api_, api_.library_get_kernel(kernel, library_, name), "cuLibraryGetKernel"));
    return cuda_status(api_, api_.kernel_get_function(out, *kernel), "cuKernelGetFunction");
  };
  CUkernel kernel = nullptr;
  if (!recipe_.range_slots.empty()) {
    ATT_CHECK(function("att_block_ranges", &kernel, &range_pass_));
  }
  ATT_CHECK(function(recipe_.symbol.c_str(), &kernel, &main_));
  ATT_CHECK(cuda_status(api_,
                        api_.kernel_set_attribute(kFunctionMaxDynamicSharedBytes,
                                                  recipe_.shared_memory_bytes, kernel, device),
                        "cuKernelSetAttribute(dynamic shared memory)"));
  if (recipe_.cluster > kPortableClusterSize) {
    ATT_CHECK(cuda_status(
        api_, api_.kernel_set_attribute(kFunctionNonPortableClusterSize, 1, kernel, device),
        "cuKernelSetAttribute(cluster size)"));
  }
  return ok_status();
}

std::size_t CudaKernel::workspace_bytes(const ProblemShape& shape) const {
  return attune::workspace_bytes(spec_, recipe_, shape);
}

Status CudaKernel::launch(const att::ForwardParams& params, void* workspace,
                          StreamHandle stream) const {
  CUcontext current = nullptr;
  ATT_CHECK(cuda_status(api_, api_.context_get_current(&current), "cuCtxGetCurrent"));
  if (current == context_) {
    return launch_in_context(params, workspace, static_cast<CUstream>(stream));
  }
  const ScopedContext scoped(api_, context_);
  ATT_CHECK(Status(scoped.status()));
  return launch_in_context(params, workspace, static_cast<CUstream>(stream));
}

Status CudaKernel::launch_in_context(const att::ForwardParams& params, void* workspace,
                                     CUstream stream) const {
  if (!recipe_.needs_scheduler_counter && recipe_.range_slots.empty()) {
    return launch_main(params, stream);
  }
  if (workspace == nullptr) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "workspace-missing",
                 .message = "this kernel needs a workspace and got none",
                 .hint = "allocate workspace_bytes(shape) bytes"};
  }
  att::ForwardParams completed = params;
  auto* next = static_cast<std::byte*>(workspace);
  if (recipe_.needs_scheduler_counter) {
    completed.scheduler_counter = reinterpret_cast<int*>(next);
    ATT_CHECK(cuda_status(api_, api_.memset_words_async(address(next), 0, 1, stream),
                          "cuMemsetD32Async"));
    next += kCounterBytes;
  }
  const ProblemShape shape = shape_of(params);
  for (const int slot : recipe_.range_slots) {
    const expr::TensorDecl& declaration = spec_.environment.tensors[static_cast<std::size_t>(slot)];
    completed.tensors[slot].block_ranges = next;
    ATT_CHECK(launch_range_pass(completed.tensors[slot], declaration, shape, stream));
    next += range_geometry(declaration, shape).bytes;
  }
  return launch_main(completed, stream);
}

Status CudaKernel::launch_range_pass(att::TensorArg& tensor, const expr::TensorDecl& declaration,
                                     const ProblemShape& shape, CUstream stream) const {
  RangeGeometry geometry = range_geometry(declaration, shape);
  int type = static_cast<int>(declaration.type);
  void* arguments[] = {&tensor, &type, &geometry.rows, &geometry.length};
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>((geometry.pairs + kRangePassPairs - 1) / kRangePassPairs);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = kRangePassThreads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  return cuda_status(api_, api_.launch_kernel(&config, range_pass_, arguments, nullptr),
                     "cuLaunchKernelEx(att_block_ranges)");
}

unsigned CudaKernel::grid_size(const att::ForwardParams& params) const {
  const auto round_up = [](std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit * unit;
  };
  const std::int64_t q_tiles =
      round_up(round_up(params.q_len, recipe_.tile_q) / recipe_.tile_q, recipe_.cluster);
  const std::int64_t items = q_tiles * params.heads * params.batch;
  if (!recipe_.persistent) return static_cast<unsigned>(items);
  const std::int64_t resident = static_cast<std::int64_t>(processor_count_) *
                                recipe_.ctas_per_processor / recipe_.cluster * recipe_.cluster;
  return static_cast<unsigned>(std::min(items, resident));
}

Status CudaKernel::launch_main(const att::ForwardParams& params, CUstream stream) const {
  if (!recipe_.tensor_maps.empty() && !tensor_maps_possible(spec_, params)) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = std::string(kStridesUnsupported),
                 .message = "the tensor unit cannot walk these strides"};
  }
  TensorMap maps[kMaxTensorMaps];
  void* arguments[1 + kMaxTensorMaps];
  arguments[0] = const_cast<att::ForwardParams*>(&params);
  for (std::size_t i = 0; i < recipe_.tensor_maps.size(); ++i) {
    ATT_CHECK(encode_tensor_map(api_, spec_, recipe_.tensor_maps[i], params, &maps[i]));
    arguments[1 + i] = &maps[i];
  }
  CUlaunchAttribute cluster{};
  cluster.id = kLaunchClusterDimension;
  cluster.value.cluster_dim = {static_cast<unsigned>(recipe_.cluster), 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = grid_size(params);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(recipe_.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(recipe_.shared_memory_bytes);
  config.hStream = stream;
  if (recipe_.cluster > 1) {
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  return cuda_status(api_, api_.launch_kernel(&config, main_, arguments, nullptr),
                     "cuLaunchKernelEx");
}

}  // namespace attune
