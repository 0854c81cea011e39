// att_tune* and att_tuning_*.
#include <cmath>
#include <cstddef>

#include "runtime/capi/arguments.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/capi/structs.hpp"
#include "tuner/host/copy_launch.hpp"
#include "tuner/host/host_tuning.hpp"
#include "tuner/host/worker_command.hpp"

struct att_tuning {
  std::shared_ptr<attune::HostTuning> tuning;
};

namespace attune {
namespace {

static_assert(static_cast<int>(HostTuningState::kRunning) == ATT_TUNE_RUNNING &&
              static_cast<int>(HostTuningState::kDone) == ATT_TUNE_DONE &&
              static_cast<int>(HostTuningState::kStopped) == ATT_TUNE_STOPPED &&
              static_cast<int>(HostTuningState::kFailed) == ATT_TUNE_FAILED);

Result<att_tune_options> checked_options(const att_tune_options* given) {
  att_tune_options options{};
  if (given != nullptr)
    ATT_CHECK(read_struct("options", given, sizeof(att_tune_options), &options));
  if (!(options.budget_ms >= 0)) return bad_argument("options.budget_ms is negative");
  if (options.max_candidates < 0) return bad_argument("options.max_candidates is negative");
  if (options.compile_threads < 0) return bad_argument("options.compile_threads is negative");
  if (options.background != 0 && options.compile_threads == 0) options.compile_threads = 1;
  return options;
}

std::function<bool(const HostProgress&)> callback(const att_tune_options& options) {
  if (options.progress == nullptr) return {};
  return [function = options.progress, context = options.progress_context](const HostProgress& p) {
    const att_tune_progress progress = {.struct_size = sizeof(att_tune_progress),
                                        .done = p.done,
                                        .total = p.total,
                                        .seconds = p.seconds,
                                        .best_us = p.best_us,
                                        .best_plan = p.best_plan.c_str()};
    return function(context, &progress) == 0;
  };
}

// `fill` makes the parameters of what the arguments say.
template <typename Args, typename Fill>
att_status tune(att_runtime* runtime, const att_spec* spec, const Args* args,
                std::size_t first_bytes, Pass pass, const Fill& fill, const att_tune_options* given,
                att_tuning** out) {
  return guarded([&]() -> Status {
    const auto began = std::chrono::steady_clock::now();
    if (out != nullptr) *out = nullptr;
    if (runtime == nullptr) return null_argument("runtime");
    if (spec == nullptr) return null_argument("spec");
    if (args == nullptr) return null_argument("args");
    Args known;
    ATT_CHECK(read_struct("args", args, first_bytes, &known));
    ATT_TRY(const att_tune_options options, checked_options(given));
    const AttentionSpec& described = *spec->spec;
    LaunchSizes sizes;
    ATT_CHECK(check_sizes(described, known.shape, &sizes));
    if (sizes.is_empty) return bad_argument("the batch is empty: there is nothing to measure");
    known.workspace = nullptr;  // candidates have their own
    att::LaunchParams params;
    ATT_CHECK(fill(described, known, sizes.shape, &params));
    Workshop& workshop = runtime->dispatcher.workshop();
    if (user_file(workshop.cache()).empty()) {
      return bad_argument("the runtime has no cache file to remember in what is found",
                          "name one in att_runtime_options, or set ATTUNE_CACHE");
    }
    // Whether the device has plans at all, before anything is copied.
    const auto guess = default_plan(described, sizes.shape, workshop.device().facts(), pass);
    if (!guess.ok()) return guess.error();
    ATT_TRY(std::vector<std::string> worker,
            worker_command(options.command == nullptr ? "" : options.command));
    ATT_TRY(std::unique_ptr<GivenLaunch> launch,
            copy_launch(workshop.device(), described, sizes.shape, pass, params));
    auto tuning = std::make_shared<HostTuning>(
        runtime->dispatcher, HostTuningRequest{.spec = spec->spec,
                                               .id = spec->id,
                                               .yaml = spec->yaml,
                                               .launch = std::move(launch),
                                               .pass = pass,
                                               .budget_seconds = options.budget_ms / 1000,
                                               .began = began,
                                               .max_candidates = options.max_candidates,
                                               .compile_threads = options.compile_threads,
                                               .worker = std::move(worker),
                                               .progress = callback(options)});
    auto handle = out == nullptr ? nullptr : std::make_unique<att_tuning>(att_tuning{tuning});
    if (options.background != 0) {
      tuning->start();
      runtime->tasks.add(tuning);
    } else {
      tuning->run();
      ATT_CHECK(tuning->wait());
    }
    if (out != nullptr) *out = handle.release();
    return ok_status();
  });
}

}  // namespace
}  // namespace attune

using namespace attune;

extern "C" {

att_status att_tune(att_runtime* runtime, const att_spec* spec, const att_forward_args* args,
                    const att_tune_options* options, att_tuning** out) {
  return tune(runtime, spec, args, offsetof(att_forward_args, tensor_views), Pass::kForward,
              fill_forward_params, options, out);
}

att_status att_tune_backward(att_runtime* runtime, const att_spec* spec,
                             const att_backward_args* args, const att_tune_options* options,
                             att_tuning** out) {
  return tune(runtime, spec, args, offsetof(att_backward_args, cu_q), Pass::kBackward,
              fill_backward_params, options, out);
}

att_status att_tuning_wait(att_tuning* tuning) {
  return guarded([&]() -> Status {
    if (tuning == nullptr) return null_argument("tuning");
    return tuning->tuning->wait();
  });
}

void att_tuning_cancel(att_tuning* tuning) {
  if (tuning != nullptr) tuning->tuning->cancel();
}

att_status att_tuning_result(const att_tuning* tuning, att_tune_result* out) {
  return guarded([&]() -> Status {
    if (tuning == nullptr) return null_argument("tuning");
    if (out == nullptr) return null_argument("out");
    const HostTuningResult found = tuning->tuning->result();
    const att_tune_result known = {.struct_size = 0,
                                   .state = static_cast<int>(found.state),
                                   .measured = found.measured,
                                   .rejected = found.rejected,
                                   .from_cache = found.from_cache,
                                   .seconds = found.seconds,
                                   .best_us = found.best_us,
                                   .before_us = found.before_us,
                                   .live_share = found.data.live,
                                   .full_share = found.data.full,
                                   .plan = found.plan,
                                   .compiler = found.compiler};
    return write_struct("out", known, sizeof(att_tune_result), out);
  });
}

void att_tuning_destroy(att_tuning* tuning) {
  if (tuning == nullptr) return;
  tuning->tuning->end();
  delete tuning;
}

}  // extern "C"
