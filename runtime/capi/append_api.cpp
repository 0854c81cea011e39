// att_append_*.
#include <cstddef>

#include "runtime/capi/append_arguments.hpp"
#include "runtime/capi/checked_launch.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/structs.hpp"

// Immutable.
struct att_append_kernel {
  // Outlives the code that is loaded on its device.
  std::shared_ptr<attune::Workshop> workshop;
  std::shared_ptr<attune::LoadedFunction> code;
  attune::AppendChoice choice;
  int tokens_per_item;
};

using namespace attune;

extern "C" {

att_status att_append_kernel_get(att_runtime* runtime, const att_append_options* options,
                                 att_append_kernel** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (runtime == nullptr) return null_argument("runtime");
    if (options == nullptr) return null_argument("options");
    att_append_options known;
    ATT_CHECK(read_struct("options", options, sizeof known, &known));
    ATT_TRY(AppendChoice choice, append_choice(known));
    const std::shared_ptr<Workshop>& workshop = runtime->dispatcher.shared_workshop();
    choice.kernel.target = workshop->device().target();
    ATT_TRY(std::shared_ptr<LoadedFunction> code, workshop->load_append(choice.kernel));
    const int tokens = append_recipe(choice.kernel).tokens_per_item;
    *out = new att_append_kernel{workshop, std::move(code), choice, tokens};
    return ok_status();
  });
}

void att_append_kernel_destroy(att_append_kernel* kernel) { delete kernel; }

att_status att_append(const att_append_kernel* kernel, const att_append_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    if (args == nullptr) return null_argument("args");
    att_append_args known;
    ATT_CHECK(read_struct("args", args, sizeof known, &known));
    att::AppendParams params;
    ATT_CHECK(fill_append_params(kernel->choice, known, &params));
    if (params.tokens == 0) return ok_status();
    Workshop& workshop = *kernel->workshop;
    if (workshop.checks_launches()) ATT_CHECK(check_launch(workshop.device(), params, stream));
    const int items = (params.tokens - 1) / kernel->tokens_per_item + 1;
    return kernel->code->launch(&params, items, stream);
  });
}

}  // extern "C"
