#include <algorithm>
#include <cstddef>
#include <cstring>

#include "runtime/capi/arguments.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/engine/status.hpp"
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

constexpr std::size_t kMaxStructBytes = 4096;  // more is an uninitialised size

Error bad_struct_size(const char* name) {
  return {.kind = ErrorKind::kBadInput,
          .id = "bad-argument",
          .message = std::string("`") + name + ".struct_size` is not that of this version",
          .hint = "set it to sizeof the struct, and build against the header of this library"};
}

Status check_struct_size(const char* name, std::size_t given, std::size_t known) {
  if (given == known) return ok_status();
  return bad_struct_size(name);
}

// A struct of an older header is shorter, at least `first_bytes`: what it lacks is zero. One of a
// newer header is longer, and fine as long as it asks for nothing that is not known here.
template <typename Struct>
Result<Struct> read_struct(const char* name, const Struct* given, std::size_t first_bytes) {
  const std::size_t bytes = given->struct_size;
  if (bytes < first_bytes || bytes > kMaxStructBytes) return bad_struct_size(name);
  const auto* raw = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(Struct); i < bytes; ++i) {
    if (raw[i] != 0) return bad_struct_size(name);
  }
  Struct known{};
  std::memcpy(&known, raw, std::min(bytes, sizeof(Struct)));
  return known;
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
    att_runtime_options known{};
    if (options != nullptr) {
      ATT_TRY(known, read_struct("options", options, offsetof(att_runtime_options, background)));
    }
    const std::string cache = known.cache_file == nullptr ? ""
                              : *known.cache_file == '\0' ? "none"
                                                          : known.cache_file;
    ATT_TRY(std::shared_ptr<Workshop> workshop,
            Workshop::open(known.device == nullptr ? "" : known.device, cache));
    *out = new att_runtime(std::move(workshop), known.background != 0);
    return ok_status();
  });
}

void att_runtime_destroy(att_runtime* runtime) { delete runtime; }

att_status att_runtime_refresh(att_runtime* runtime) {
  return guarded([&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    return runtime->dispatcher.refresh();
  });
}

void att_runtime_wait(att_runtime* runtime) {
  if (runtime != nullptr) runtime->dispatcher.wait_idle();
}

size_t att_runtime_status(const att_runtime* runtime, char* buffer, size_t size) {
  std::size_t needed = 0;
  (void)guarded([&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    const std::string text = status_json(runtime->dispatcher);
    if (buffer != nullptr && size > 0) {
      const std::size_t copied = std::min(size - 1, text.size());
      std::memcpy(buffer, text.data(), copied);
      buffer[copied] = '\0';
    }
    needed = text.size() + 1;
    return ok_status();
  });
  return needed;
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
    ATT_TRY(KernelEntry * entry, runtime->dispatcher.get(spec->spec, spec->id, checked));
    *out = to_handle(entry);
    return ok_status();
  });
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
  if (kernel == nullptr || shape == nullptr) return 0;
  const Result<ProblemShape> checked = checked_shape(*shape);
  return checked.ok() ? from_handle(kernel)->workspace_bytes(*checked) : 0;
}

att_status att_forward(const att_kernel* kernel, const att_forward_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    if (args == nullptr) return null_argument("args");
    ATT_CHECK(check_struct_size("args", args->struct_size, sizeof(*args)));
    att::ForwardParams params;
    const KernelEntry& entry = *from_handle(kernel);
    ATT_CHECK(fill_forward_params(entry.spec(), *args, &params));
    return entry.launch(params, args->workspace, stream);
  });
}

}  // extern "C"
