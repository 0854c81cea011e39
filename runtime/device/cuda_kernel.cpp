#include "runtime/device/cuda_kernel.hpp"

#include <bit>
#include <cstddef>

#include "runtime/device/cuda_context.hpp"
#include "runtime/device/tensor_maps.hpp"
#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

constexpr std::size_t kMaxTensorMaps = 12;
constexpr int kPortableClusterSize = 8;

// Drivers of older versions of CUDA overlap launches, but take none that overlaps into a graph.
constexpr int kOverlapsInGraphs = 12030;

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
  const RelaxedCapture relaxed(api_);
  if (current.status().ok()) api_.library_unload(library_);
}

// The library belongs to no context; asking for the functions loads it into this one now, because
// the driver cannot do so at the first launch when a graph is being captured. This may be asked for
// in the middle of a capture, too: nothing here is of a stream.
Status CudaKernel::open(CUdevice device, std::span<const std::uint8_t> image) {
  const RelaxedCapture relaxed(api_);
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  int version = 0;
  ATT_CHECK(cuda_status(api_, api_.driver_get_version(&version), "cuDriverGetVersion"));
  may_overlap_ = version >= kOverlapsInGraphs;
  ATT_CHECK(cuda_status(
      api_,
      api_.library_load_data(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "cuLibraryLoadData"));
  for (const Launch& launch : recipe_.launches) {
    if (launch.tensor_maps.size() > kMaxTensorMaps) {
      return Error{.id = "launch-recipe",
                   .message = "a kernel takes more TMA descriptors than known"};
    }
    Functions& functions = functions_.emplace_back();
    ATT_TRY(functions.main, function(launch, launch.symbol, device));
    if (launch.otherwise.empty()) continue;
    ATT_TRY(functions.otherwise, function(launch, launch.otherwise, device));
  }
  return ok_status();
}

Result<CUfunction> CudaKernel::function(const Launch& launch, const std::string& symbol,
                                        CUdevice device) const {
  CUkernel kernel = nullptr;
  CUfunction found = nullptr;
  ATT_CHECK(cuda_status(api_, api_.library_get_kernel(&kernel, library_, symbol.c_str()),
                        "cuLibraryGetKernel"));
  ATT_CHECK(cuda_status(api_, api_.kernel_get_function(&found, kernel), "cuKernelGetFunction"));
  ATT_CHECK(cuda_status(api_,
                        api_.kernel_set_attribute(kFunctionMaxDynamicSharedBytes,
                                                  launch.shared_memory_bytes, kernel, device),
                        "cuKernelSetAttribute(dynamic shared memory)"));
  if (launch.cluster > kPortableClusterSize) {
    ATT_CHECK(cuda_status(
        api_, api_.kernel_set_attribute(kFunctionNonPortableClusterSize, 1, kernel, device),
        "cuKernelSetAttribute(cluster size)"));
  }
  return found;
}

std::size_t CudaKernel::workspace_bytes(const ProblemShape& shape) const {
  return attune::workspace_bytes(spec_, recipe_, shape);
}

Status CudaKernel::launch(const att::LaunchParams& params, void* workspace,
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

Status CudaKernel::launch_in_context(const att::LaunchParams& params, void* workspace,
                                     CUstream stream) const {
  for (const Launch& launch : recipe_.launches) {  // all, before the first has begun
    const auto grid = grid_of(launch, shape_of(params));
    if (!grid.ok()) return grid.error();
    if (tensor_maps_possible(spec_, launch.tensor_maps, params)) continue;
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = std::string(kStridesUnsupported),
                 .message = "the tensor unit cannot walk these strides"};
  }
  if (recipe_.workspace.empty()) return launch_all(params, workspace, stream);
  att::LaunchParams completed = params;
  ATT_CHECK(place_workspace(spec_, recipe_, workspace, &completed));
  completed.pieces.processors = processor_count_;
  return launch_all(completed, workspace, stream);
}

Status CudaKernel::launch_all(const att::LaunchParams& params, void* workspace,
                              CUstream stream) const {
  const ProblemShape shape = shape_of(params);
  for (std::size_t i = 0; i < recipe_.launches.size(); ++i) {
    const Launch& launch = recipe_.launches[i];
    for (const WorkspaceRegion::Content content : launch.zeroed) {
      const PlacedRegion region = placed_region(spec_, recipe_, content, shape, workspace);
      if (region.bytes == 0) continue;
      ATT_CHECK(cuda_status(
          api_, api_.memset_words_async(device_address(region.data), 0, region.bytes / 4, stream),
          "cuMemsetD32Async"));
    }
    ATT_CHECK(launch_one(launch, functions_[i], params, shape, stream));
  }
  return ok_status();
}

Result<unsigned> CudaKernel::grid_of(const Launch& launch, const ProblemShape& shape) const {
  return grid_size(launch, item_count(spec_, recipe_, launch, shape), processor_count_);
}

Status CudaKernel::launch_one(const Launch& launch, const Functions& functions,
                              const att::LaunchParams& params, const ProblemShape& shape,
                              CUstream stream) const {
  const bool has_maps = has_optional_maps(spec_, launch.tensor_maps, params);
  TensorMap maps[kMaxTensorMaps];
  void* arguments[1 + kMaxTensorMaps];
  arguments[0] = const_cast<att::LaunchParams*>(&params);  // as many bytes as the kernel declares
  for (std::size_t i = 0; i < launch.tensor_maps.size() && has_maps; ++i) {
    ATT_CHECK(encode_tensor_map(api_, spec_, launch.tensor_maps[i], params, &maps[i]));
    arguments[1 + i] = &maps[i];
  }
  CUlaunchConfig config{};
  ATT_TRY(config.gridDimX, grid_of(launch, shape));
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(launch.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(launch.shared_memory_bytes);
  config.hStream = stream;
  CUlaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (launch.cluster > 1) {
    CUlaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = kLaunchClusterDimension;
    cluster.value.cluster_dim = {static_cast<unsigned>(launch.cluster), 1, 1};
  }
  const bool overlaps_previous = launch.overlaps_previous && may_overlap_;
  if (overlaps_previous) {
    CUlaunchAttribute& overlaps = attributes[config.numAttrs++];
    overlaps.id = kLaunchOverlapsPrevious;
    overlaps.value.programmatic_stream_serialization = 1;
  }
  const CUfunction chosen = has_maps ? functions.main : functions.otherwise;
  CUresult result = api_.launch_kernel(&config, chosen, arguments, nullptr);
  const bool is_refused = result == kCudaErrorNotSupported || result == kCudaErrorInvalidValue;
  if (overlaps_previous && is_refused) {  // a kernel of it runs behind others, too
    --config.numAttrs;                    // the last one is what the launch may not have
    if (api_.launch_kernel(&config, chosen, arguments, nullptr) == kCudaSuccess)
      result = kCudaSuccess;
  }
  return cuda_status(api_, result, "cuLaunchKernelEx");
}

}  // namespace attune
