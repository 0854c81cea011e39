#include "runtime/device/cuda_function.hpp"

#include "runtime/device/cuda_context.hpp"

namespace attune {

Result<std::unique_ptr<LoadedFunction>> CudaFunction::load(const CudaApi& api, CUcontext context,
                                                           const FunctionRecipe& recipe,
                                                           std::span<const std::uint8_t> image) {
  std::unique_ptr<CudaFunction> function(new CudaFunction(api, context, recipe.threads));
  ATT_CHECK(function->open(recipe.symbol, image));
  return std::unique_ptr<LoadedFunction>(std::move(function));
}

CudaFunction::~CudaFunction() {
  if (library_ == nullptr) return;
  const ScopedContext current(api_, context_);
  const RelaxedCapture relaxed(api_);
  if (current.status().ok()) api_.library_unload(library_);
}

// Asking for the function loads it into the context now, captures or not, as CudaKernel::open()
// does.
Status CudaFunction::open(const std::string& symbol, std::span<const std::uint8_t> image) {
  const RelaxedCapture relaxed(api_);
  const ScopedContext current(api_, context_);
  ATT_CHECK(Status(current.status()));
  ATT_CHECK(cuda_status(
      api_,
      api_.library_load_data(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "cuLibraryLoadData"));
  CUkernel kernel = nullptr;
  ATT_CHECK(cuda_status(api_, api_.library_get_kernel(&kernel, library_, symbol.c_str()),
                        "cuLibraryGetKernel"));
  return cuda_status(api_, api_.kernel_get_function(&function_, kernel), "cuKernelGetFunction");
}

Status CudaFunction::launch(const void* params, int items, StreamHandle stream) const {
  CUcontext current = nullptr;
  ATT_CHECK(cuda_status(api_, api_.context_get_current(&current), "cuCtxGetCurrent"));
  if (current == context_) return launch_in_context(params, items, static_cast<CUstream>(stream));
  const ScopedContext scoped(api_, context_);
  ATT_CHECK(Status(scoped.status()));
  return launch_in_context(params, items, static_cast<CUstream>(stream));
}

Status CudaFunction::launch_in_context(const void* params, int items, CUstream stream) const {
  void* arguments[] = {const_cast<void*>(params)};
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(items);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(threads_);
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  return cuda_status(api_, api_.launch_kernel(&config, function_, arguments, nullptr),
                     "cuLaunchKernelEx");
}

}  // namespace attune
