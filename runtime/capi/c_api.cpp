#include <algorithm>

#include "runtime/capi/arguments.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/device/workspace.hpp"
#include "runtime/specs/spec_file.hpp"

namespace attune {

std::string& last_error_message() {
  thread_local std::string message;
  return message;
}

namespace {

Error null_argument(const char* name) {
  return {.kind = ErrorKind::kBadInput,
          .id = "bad-argument",
          .message = std::string("`") + name + "` is null"};
}

// A struct of an older header is shorter; one of a newer header may ask for what is not known here.
Status check_struct_size(const char* name, std::size_t given, std::size_t known) {
  if (given == known) return ok_status();
  return Error{.kind = ErrorKind::kBadInput,
               .id = "bad-argument",
               .message = std::string("`") + name + ".struct_size` is not that of this version",
               .hint = "set it to sizeof the struct, and build against the header of this library"};
}

Status make_spec(Result<AttentionSpec> parsed, att_spec** out) {
  ATT_TRY(AttentionSpec spec, std::move(parsed));
  const SpecId id = SpecId::from_hash(spec_hash(spec));
  *out = new att_spec{std::make_shared<const AttentionSpec>(std::move(spec)), id};
  return ok_status();
}

template <typename Declarations>
int find_slot(const Declarations& declarations, const char* name) {
  const auto found =
      std::ranges::find_if(declarations, [&](const auto& d) { return d.name == name; });
  return found == declarations.end() ? -1 : static_cast<int>(found - declarations.begin());
}

// The cost model's best plan of the family that takes any strides.
std::optional<KernelPlan> fallback_plan(const AttentionSpec& spec, const KernelPlan& plan,
                                        const ProblemShape& shape, const DeviceFacts& facts) {
  if (launch_recipe(spec, plan).tensor_maps.empty()) return std::nullopt;
  const std::vector<KernelPlan> plans = legal_plans(spec, Family::kSm80, facts);
  const auto cost = [&](const KernelPlan& p) { return cost_us(spec, p, shape, facts); };
  const auto best = std::ranges::min_element(plans, {}, cost);
  return best == plans.end() ? std::nullopt : std::optional(*best);
}

Result<att_kernel*> make_kernel(att_runtime& runtime, const att_spec& spec, const KernelKey& key) {
  Workshop& workshop = *runtime.workshop;
  ATT_TRY(const PlanChoice choice, workshop.choose(*spec.spec, spec.id, key.shape));
  ATT_TRY(std::shared_ptr<LoadedKernel> code, workshop.load(*spec.spec, choice.plan));
  auto kernel = std::make_unique<att_kernel>();
  kernel->key = key;
  kernel->workshop = runtime.workshop;
  kernel->spec = spec.spec;
  kernel->source = choice.source;
  kernel->plan = to_string(choice.plan);
  kernel->code = std::move(code);
  kernel->fallback = fallback_plan(*spec.spec, choice.plan, key.shape, workshop.device().facts());
  return kernel.release();
}

// A launch that the tensor unit cannot do; rare, so the table of loaded code may take its lock.
Status launch_fallback(const att_kernel& kernel, const att::ForwardParams& params, void* workspace,
                       void* stream) {
  ATT_TRY(const std::shared_ptr<LoadedKernel> code,
          kernel.workshop->load(*kernel.spec, *kernel.fallback));
  return code->launch(params, workspace, stream);
}

}  // namespace
}  // namespace attune

using namespace attune;

// att_spec_info shows these enums as they are.
static_assert(static_cast<int>(DType::kF16) == ATT_FP16 &&
              static_cast<int>(DType::kBf16) == ATT_BF16 &&
              static_cast<int>(DType::kF32) == ATT_FP32 &&
              static_cast<int>(DType::kFp8E4m3) == ATT_FP8_E4M3);
static_assert(static_cast<int>(Layout::kBshd) == ATT_BSHD &&
              static_cast<int>(Layout::kBhsd) == ATT_BHSD);

extern "C" {

const char* att_version(void) { return ATTUNE_VERSION; }

const char* att_last_error(void) { return last_error_message().c_str(); }

att_status att_runtime_create(const att_runtime_options* options, att_runtime** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    const char* device = nullptr;
    const char* cache_file = nullptr;
    if (options != nullptr) {
      ATT_CHECK(check_struct_size("options", options->struct_size, sizeof(*options)));
      device = options->device;
      cache_file = options->cache_file;
    }
    const std::string cache = cache_file == nullptr ? ""
                              : *cache_file == '\0' ? "none"
                                                    : cache_file;
    auto runtime = std::make_unique<att_runtime>();
    ATT_TRY(runtime->workshop, Workshop::open(device == nullptr ? "" : device, cache));
    runtime->device = runtime->workshop->device().identity();
    *out = runtime.release();
    return ok_status();
  });
}

void att_runtime_destroy(att_runtime* runtime) {
  if (runtime == nullptr) return;
  runtime->kernels.for_each([](att_kernel& kernel) { release(&kernel); });
  delete runtime;
}

const char* att_runtime_device(const att_runtime* runtime) {
  return runtime == nullptr ? "" : runtime->device.c_str();
}

att_status att_spec_from_yaml(const char* yaml, att_spec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (yaml == nullptr) return null_argument("yaml");
    return make_spec(parse_spec(yaml, ""), out);
  });
}

att_status att_spec_from_file(const char* path_or_name, att_spec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (path_or_name == nullptr) return null_argument("path_or_name");
    return make_spec(load_spec(path_or_name), out);
  });
}

void att_spec_destroy(att_spec* spec) { delete spec; }

att_status att_spec_describe(const att_spec* spec, att_spec_info* out) {
  return guarded([&]() -> Status {
    if (spec == nullptr) return null_argument("spec");
    if (out == nullptr) return null_argument("out");
    ATT_CHECK(check_struct_size("out", out->struct_size, sizeof(*out)));
    const AttentionSpec& s = *spec->spec;
    out->dtype = static_cast<int>(s.dtype);
    out->layout = static_cast<int>(s.layout);
    out->head_dim_qk = s.head_dim_qk;
    out->head_dim_v = s.head_dim_v;
    out->scalar_count = static_cast<int>(s.environment.scalars.size());
    out->tensor_count = static_cast<int>(s.environment.tensors.size());
    out->softmax_scale_at_launch = s.softmax_scale.at_launch ? 1 : 0;
    out->dropout_at_launch = s.dropout.at_launch ? 1 : 0;
    return ok_status();
  });
}

int att_spec_scalar_slot(const att_spec* spec, const char* name) {
  if (spec == nullptr || name == nullptr) return -1;
  const int slot = find_slot(spec->spec->environment.scalars, name);
  const bool constant =
      slot >= 0 && spec->spec->environment.scalars[static_cast<std::size_t>(slot)].is_constant;
  return constant ? -1 : slot;
}

int att_spec_tensor_slot(const att_spec* spec, const char* name) {
  if (spec == nullptr || name == nullptr) return -1;
  return find_slot(spec->spec->environment.tensors, name);
}

att_status att_kernel_get(att_runtime* runtime, const att_spec* spec, const att_shape* shape,
                          att_kernel** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (runtime == nullptr) return null_argument("runtime");
    if (spec == nullptr) return null_argument("spec");
    if (shape == nullptr) return null_argument("shape");
    ATT_TRY(const ProblemShape checked, checked_shape(*shape));
    const KernelKey key{spec->id, checked};
    if (att_kernel* known = runtime->kernels.find(key)) {
      retain(*known);
      *out = known;
      return ok_status();
    }
    ATT_TRY(att_kernel * made, make_kernel(*runtime, *spec, key));
    retain(*made);
    att_kernel* kept = runtime->kernels.add(made);
    if (kept == made) {
      *out = made;
    } else if (kept == nullptr) {  // the table is full: the caller's reference is the only one
      release(made);
      *out = made;
    } else {  // another thread was first
      delete made;
      retain(*kept);
      *out = kept;
    }
    return ok_status();
  });
}

void att_kernel_destroy(att_kernel* kernel) {
  if (kernel != nullptr) release(kernel);
}

const char* att_kernel_plan(const att_kernel* kernel) {
  return kernel == nullptr ? "" : kernel->plan.c_str();
}

const char* att_kernel_source(const att_kernel* kernel) {
  if (kernel == nullptr) return "";
  switch (kernel->source) {
    case PlanSource::kMeasured:
      return "measured";
    case PlanSource::kNearestBucket:
      return "nearest";
    case PlanSource::kStandIn:
      return "stand-in";
    case PlanSource::kCostModel:
      break;
  }
  return "model";
}

size_t att_kernel_workspace_bytes(const att_kernel* kernel, const att_shape* shape) {
  if (kernel == nullptr || shape == nullptr) return 0;
  const Result<ProblemShape> checked = checked_shape(*shape);
  if (!checked.ok()) return 0;
  const std::size_t bytes = kernel->code->workspace_bytes(*checked);
  if (!kernel->fallback) return bytes;
  const LaunchRecipe recipe = launch_recipe(*kernel->spec, *kernel->fallback);
  return std::max(bytes, workspace_bytes(*kernel->spec, recipe, *checked));
}

att_status att_forward(const att_kernel* kernel, const att_forward_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    if (args == nullptr) return null_argument("args");
    ATT_CHECK(check_struct_size("args", args->struct_size, sizeof(*args)));
    att::ForwardParams params;
    ATT_CHECK(fill_forward_params(*kernel->spec, *args, &params));
    Status status = kernel->code->launch(params, args->workspace, stream);
    if (status.ok() || status.error().id != kStridesUnsupported || !kernel->fallback) return status;
    return launch_fallback(*kernel, params, args->workspace, stream);
  });
}

}  // extern "C"
