// att_spec_*: making, describing and asking a spec.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "generator/spec/device_seed.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/capi/arguments.hpp"
#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/capi/spec_texts.hpp"
#include "runtime/capi/structs.hpp"
#include "runtime/specs/spec_file.hpp"

namespace attune {
namespace {

// att_spec_info and its kin show these enums as they are.
static_assert(static_cast<int>(DType::kF16) == ATT_FP16 &&
              static_cast<int>(DType::kBf16) == ATT_BF16 &&
              static_cast<int>(DType::kF32) == ATT_FP32 &&
              static_cast<int>(DType::kFp8E4m3) == ATT_FP8_E4M3);
static_assert(static_cast<int>(Layout::kBshd) == ATT_BSHD &&
              static_cast<int>(Layout::kBhsd) == ATT_BHSD &&
              static_cast<int>(Layout::kThd) == ATT_THD &&
              static_cast<int>(Layout::kPaged) == ATT_PAGED);
static_assert(static_cast<int>(Pass::kForward) == ATT_PASS_FORWARD &&
              static_cast<int>(Pass::kBackward) == ATT_PASS_BACKWARD);

std::string dims_text(const expr::TensorDecl& tensor) {
  std::string text;
  for (const expr::DimSize& dim : tensor.dims) {
    if (!text.empty()) text += ", ";
    text += dim_text(dim);
  }
  return text;
}

// Whoever holds the spec, a kernel of it too, holds its text.
struct HeldSpec {
  AttentionSpec spec;
  SpecTexts::Text text;
};

SpecTexts& spec_texts() {
  static SpecTexts texts;
  return texts;
}

Status make_spec(std::string yaml, const std::string& file, att_spec** out) {
  ATT_TRY(AttentionSpec spec, parse_spec(yaml, file));
  std::string canonical = canonical_text(spec);
  std::string hash = text_hash(canonical);
  ATT_TRY(SpecTexts::Text text, spec_texts().hold(hash, std::move(canonical)));
  const SpecId id = SpecId::from_hash(hash);
  std::vector<std::string> dims;
  for (const expr::TensorDecl& tensor : spec.environment.tensors) dims.push_back(dims_text(tensor));
  const auto held = std::make_shared<const HeldSpec>(HeldSpec{std::move(spec), std::move(text)});
  *out = new att_spec{std::shared_ptr<const AttentionSpec>(held, &held->spec), id, std::move(hash),
                      std::move(dims), std::move(yaml)};
  return ok_status();
}

template <typename Declarations>
int find_slot(const Declarations& declarations, const char* name) {
  const auto found =
      std::ranges::find_if(declarations, [&](const auto& d) { return d.name == name; });
  return found == declarations.end() ? -1 : static_cast<int>(found - declarations.begin());
}

// The declaration of a slot.
template <typename Declaration>
Result<const Declaration*> at_slot(const char* what, const std::vector<Declaration>& declarations,
                                   int slot) {
  if (slot < 0 || slot >= static_cast<int>(declarations.size())) {
    return bad_argument(
        fmt::format("slot {} is none of the spec's {} {}", slot, declarations.size(), what));
  }
  return &declarations[static_cast<std::size_t>(slot)];
}

int scalar_dtype(expr::Type type) {
  switch (type) {
    case expr::Type::kInt32:
      return ATT_INT32;
    case expr::Type::kFloat32:
      return ATT_FP32;
    case expr::Type::kBool:
      break;
  }
  return ATT_BOOL;
}

double fixed_value(const Parameter& parameter) { return parameter.at_launch ? 0 : parameter.value; }

}  // namespace
}  // namespace attune

using namespace attune;

extern "C" {

att_status att_spec_from_yaml(const char* yaml, att_spec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (yaml == nullptr) return null_argument("yaml");
    return make_spec(yaml, "", out);
  });
}

att_status att_spec_from_file(const char* path_or_name, att_spec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (path_or_name == nullptr) return null_argument("path_or_name");
    ATT_TRY(SpecText read, read_spec(path_or_name));
    return make_spec(std::move(read.text), read.origin, out);
  });
}

att_status att_spec_with_device_seed(const att_spec* spec, att_spec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    if (spec == nullptr) return null_argument("spec");
    ATT_TRY(std::string yaml, with_device_seed(spec->yaml));
    return make_spec(std::move(yaml), "", out);
  });
}

void att_spec_destroy(att_spec* spec) { delete spec; }

att_status att_spec_describe(const att_spec* spec, att_spec_info* out) {
  return guarded([&]() -> Status {
    if (spec == nullptr) return null_argument("spec");
    if (out == nullptr) return null_argument("out");
    const AttentionSpec& s = *spec->spec;
    att_spec_info info{};
    info.dtype = static_cast<int>(s.dtype);
    info.layout = static_cast<int>(s.layout);
    info.head_dim_qk = s.head_dim_qk;
    info.head_dim_v = s.head_dim_v;
    info.scalar_count = static_cast<int>(s.environment.scalars.size());
    info.tensor_count = static_cast<int>(s.environment.tensors.size());
    info.softmax_scale_at_launch = s.softmax_scale.at_launch ? 1 : 0;
    info.dropout_at_launch = s.dropout.at_launch ? 1 : 0;
    info.name = s.name.c_str();
    info.hash = spec->hash.c_str();
    info.softmax_scale = fixed_value(s.softmax_scale);
    info.dropout = fixed_value(s.dropout);
    for (const Pass pass : s.passes) info.passes |= 1 << static_cast<int>(pass);
    info.has_mask = s.mask != nullptr ? 1 : 0;
    info.has_score = s.score != nullptr ? 1 : 0;
    info.has_sink = s.sink != nullptr ? 1 : 0;
    info.deterministic = s.deterministic ? 1 : 0;
    info.kv_dtype = static_cast<std::int64_t>(kv_dtype(s));
    info.v_in_k = s.v_in_k ? 1 : 0;
    info.dropout_seed_on_device = s.seed_on_device ? 1 : 0;
    info.yaml = spec->yaml.c_str();
    return write_struct("out", info, offsetof(att_spec_info, name), out);
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

att_status att_spec_describe_scalar(const att_spec* spec, int slot, att_scalar_info* out) {
  return guarded([&]() -> Status {
    if (spec == nullptr) return null_argument("spec");
    if (out == nullptr) return null_argument("out");
    ATT_TRY(const expr::ScalarDecl* scalar,
            at_slot("scalars", spec->spec->environment.scalars, slot));
    att_scalar_info info{};
    info.name = scalar->name.c_str();
    info.dtype = scalar_dtype(scalar->type);
    info.is_constant = scalar->is_constant ? 1 : 0;
    info.value = scalar->is_constant ? scalar->value : 0;
    return write_struct("out", info, sizeof(info), out);
  });
}

att_status att_spec_describe_tensor(const att_spec* spec, int slot, att_tensor_info* out) {
  return guarded([&]() -> Status {
    if (spec == nullptr) return null_argument("spec");
    if (out == nullptr) return null_argument("out");
    ATT_TRY(const expr::TensorDecl* tensor,
            at_slot("tensors", spec->spec->environment.tensors, slot));
    att_tensor_info info{};
    info.name = tensor->name.c_str();
    info.dtype = tensor_dtype(tensor->type);
    info.ndim = static_cast<int>(tensor->dims.size());
    info.grad = tensor->grad ? 1 : 0;
    info.dims = spec->tensor_dims[static_cast<std::size_t>(slot)].c_str();
    return write_struct("out", info, sizeof(info), out);
  });
}

att_status att_spec_tensor_sizes(const att_spec* spec, int slot, const att_shape* shape,
                                 int64_t* sizes, int capacity) {
  return guarded([&]() -> Status {
    if (spec == nullptr) return null_argument("spec");
    if (shape == nullptr) return null_argument("shape");
    if (sizes == nullptr) return null_argument("sizes");
    ATT_TRY(const expr::TensorDecl* tensor,
            at_slot("tensors", spec->spec->environment.tensors, slot));
    LaunchSizes checked;
    ATT_CHECK(check_shape(*shape, &checked));
    if (capacity < static_cast<int>(tensor->dims.size())) {
      return bad_argument(
          fmt::format("capacity is {}, and the tensor has {} dims", capacity, tensor->dims.size()));
    }
    for (const expr::DimSize& dim : tensor->dims) *sizes++ = dim_size(dim, problem_shape(*shape));
    return ok_status();
  });
}

}  // extern "C"
