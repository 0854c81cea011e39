#include "runtime/device/residue_kernel.hpp"

#include <fmt/format.h>

#include "generator/spec/residues.hpp"
#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

// Every residues-th row; slice_offset() of templates/sequence.h finds the first one.
att::LaunchParams of_residues(const att::LaunchParams& whole, int residues) {
  const ProblemShape shape = residue_shape(shape_of(whole), residues);
  att::LaunchParams params = whole;
  params.batch = static_cast<int>(shape.batch);
  params.q_len = static_cast<int>(shape.q_len);
  params.kv_len = static_cast<int>(shape.kv_len);
  for (att::Strides* const stride :
       {&params.q_stride, &params.k_stride, &params.v_stride, &params.o_stride, &params.d_o_stride,
        &params.d_q_stride, &params.d_k_stride, &params.d_v_stride}) {
    stride->seq *= residues;
  }
  return params;
}

class ResidueKernel final : public LoadedKernel {
 public:
  ResidueKernel(std::unique_ptr<LoadedKernel> kernel, int residues)
      : kernel_(std::move(kernel)), residues_(residues) {}

  Status launch(const att::LaunchParams& params, void* workspace,
                StreamHandle stream) const override {
    if (!has_residues(shape_of(params), residues_)) {
      return Error{.kind = ErrorKind::kUnsupported,
                   .id = std::string(kStridesUnsupported),
                   .message = fmt::format("q_len and kv_len are not both multiples of {}, by which "
                                          "this plan takes sequences apart",
                                          residues_)};
    }
    return kernel_->launch(of_residues(params, residues_), workspace, stream);
  }

  std::size_t workspace_bytes(const ProblemShape& shape) const override {
    return kernel_->workspace_bytes(residue_shape(shape, residues_));
  }

 private:
  const std::unique_ptr<LoadedKernel> kernel_;
  const int residues_;
};

}  // namespace

std::unique_ptr<LoadedKernel> launched_whole(std::unique_ptr<LoadedKernel> kernel, int residues) {
  if (residues == 1) return kernel;
  return std::make_unique<ResidueKernel>(std::move(kernel), residues);
}

}  // namespace attune
