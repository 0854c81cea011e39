#include "tuner/measure/kernel_workspace.hpp"

#include "tuner/measure/output_buffer.hpp"

namespace attune {

Status KernelWorkspace::prepare(const LoadedKernel& kernel) {
  const std::size_t needed = kernel.workspace_bytes(shape_);
  if (needed <= memory_.bytes()) return ok_status();
  memory_ = DeviceBuffer();
  ATT_TRY(memory_, DeviceBuffer::make(device_, needed));
  return fresh_ == Fresh::kPoison ? poison() : ok_status();
}

Status KernelWorkspace::launch(const LoadedKernel& kernel, const att::LaunchParams& params,
                               StreamHandle stream) {
  ATT_CHECK(prepare(kernel));
  return kernel.launch(params, kernel.workspace_bytes(shape_) == 0 ? nullptr : memory_.data(),
                       stream);
}

Status KernelWorkspace::poison() {
  if (memory_.bytes() == 0) return ok_status();
  return device_.fill(memory_.data(), kPoison, memory_.bytes());
}

}  // namespace attune
