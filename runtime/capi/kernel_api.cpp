// att_kernel_* and the launches.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/capi/arguments.hpp"
#include "runtime/capi/checked_launch.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/capi/structs.hpp"
#include "runtime/engine/status.hpp"

namespace attune {
namespace {

Status get_kernel(att_runtime* runtime, const att_spec* spec, const att_shape* shape, int pass,
                  att_kernel** out) {
  if (out == nullptr) return null_argument("out");
  *out = nullptr;
  if (runtime == nullptr) return null_argument("runtime");
  if (spec == nullptr) return null_argument("spec");
  if (shape == nullptr) return null_argument("shape");
  if (pass != ATT_PASS_FORWARD && pass != ATT_PASS_BACKWARD)
    return bad_argument(fmt::format("pass {} is no att_pass", pass));
  const Pass asked = pass == ATT_PASS_FORWARD ? Pass::kForward : Pass::kBackward;
  LaunchSizes sizes;
  ATT_CHECK(check_sizes(*spec->spec, *shape, &sizes));
  ATT_TRY(KernelEntry * entry, runtime->dispatcher.get(spec->spec, spec->id, sizes.shape, asked));
  *out = to_handle(entry);
  return ok_status();
}

Status finish_empty(const AttentionSpec&, const att_forward_args&) { return ok_status(); }

// There is nothing to enqueue; but sums over no elements are zero, and somebody must write them.
Status finish_empty(const AttentionSpec& spec, const att_backward_args& args) {
  ATT_CHECK(check_gradient_count(spec, args));
  const int slots = args.d_tensors == nullptr ? 0 : args.d_tensor_count;
  const bool learns = std::any_of(args.d_tensors, args.d_tensors + slots,
                                  [](const float* gradient) { return gradient != nullptr; });
  if (args.shape.batch == 0 && !learns) return ok_status();
  return bad_argument("the batch is empty, and gradients that sum over it are not",
                      "d_k, d_v and d_tensors are zero; fill them");
}

// `fill` makes the parameters of what the arguments say.
template <typename Args, typename Fill>
att_status launch(const att_kernel* kernel, const Args* args, std::size_t first_bytes, Pass pass,
                  const Fill& fill, void* stream) {
  return guarded([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    if (args == nullptr) return null_argument("args");
    const KernelEntry& entry = *from_handle(kernel);
    if (entry.key.pass != pass) {
      return bad_argument(fmt::format("the kernel is of the {} pass", to_string(entry.key.pass)),
                          "ask att_kernel_get_for_pass for one of this pass");
    }
    Args known;
    ATT_CHECK(read_struct("args", args, first_bytes, &known));
    LaunchSizes sizes;
    ATT_CHECK(check_sizes(entry.spec(), known.shape, &sizes));
    if (sizes.is_empty) return finish_empty(entry.spec(), known);
    if (known.workspace != nullptr || known.workspace_bytes != 0)
      ATT_CHECK(check_workspace(entry.workspace_bytes(sizes.shape), &known));
    att::LaunchParams params;
    ATT_CHECK(fill(entry.spec(), known, sizes.shape, &params));
    if (entry.checks_launches()) ATT_CHECK(check_launch(entry.device(), params, stream));
    return entry.launch(params, known.workspace, stream);
  });
}

}  // namespace
}  // namespace attune

using namespace attune;

extern "C" {

att_status att_kernel_get(att_runtime* runtime, const att_spec* spec, const att_shape* shape,
                          att_kernel** out) {
  return att_kernel_get_for_pass(runtime, spec, shape, ATT_PASS_FORWARD, out);
}

att_status att_kernel_get_for_pass(att_runtime* runtime, const att_spec* spec,
                                   const att_shape* shape, int pass, att_kernel** out) {
  return guarded([&] { return get_kernel(runtime, spec, shape, pass, out); });
}

void att_kernel_destroy(att_kernel* kernel) {
  if (kernel != nullptr) from_handle(kernel)->release();
}

const char* att_kernel_plan(const att_kernel* kernel) {
  return kernel == nullptr ? "" : from_handle(kernel)->version().plan.c_str();
}

const char* att_kernel_source(const att_kernel* kernel) {
  return kernel == nullptr ? "" : to_string(from_handle(kernel)->version().choice.source);
}

size_t att_kernel_workspace_bytes(const att_kernel* kernel, const att_shape* shape) {
  std::size_t bytes = SIZE_MAX;
  (void)guarded([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    if (shape == nullptr) return null_argument("shape");
    const KernelEntry& entry = *from_handle(kernel);
    LaunchSizes sizes;
    ATT_CHECK(check_sizes(entry.spec(), *shape, &sizes));
    bytes = sizes.is_empty ? 0 : entry.workspace_bytes(sizes.shape);
    return ok_status();
  });
  return bytes;
}

att_status att_forward(const att_kernel* kernel, const att_forward_args* args, void* stream) {
  return launch(kernel, args, offsetof(att_forward_args, tensor_views), Pass::kForward,
                fill_forward_params, stream);
}

att_status att_backward(const att_kernel* kernel, const att_backward_args* args, void* stream) {
  return launch(kernel, args, offsetof(att_backward_args, cu_q), Pass::kBackward,
                fill_backward_params, stream);
}

}  // extern "C"
