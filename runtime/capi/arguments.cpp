#include "runtime/capi/arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/spec/shape.hpp"
#include "runtime/capi/cache_scales.hpp"
#include "runtime/capi/operand.hpp"
#include "runtime/capi/sizes.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

constexpr int kWorkspaceAlignmentBytes = 16;

template <typename Args>
Status fill_dropout(const AttentionSpec& spec, const Args& args, att::LaunchParams* params) {
  const double probability = spec.dropout.at_launch ? args.dropout : spec.dropout.value;
  if (!(probability >= 0 && probability < 1)) {
    return bad_argument(fmt::format("dropout is {}, not in [0, 1)", probability));
  }
  const long drop_below = std::lround(probability * 256);
  if (drop_below == 256 || (probability > 0 && drop_below == 0)) {
    return bad_argument(
        fmt::format("dropout {} is none of the steps of 1/256 in between", probability),
        "elements are dropped with a probability in 256ths");
  }
  set_dropout(static_cast<unsigned>(drop_below), args.dropout_seed, args.dropout_offset, params);
  if (spec.seed_on_device) {
    ATT_CHECK(check_pointer("dropout_state", args.dropout_state, alignof(std::uint64_t)));
    set_dropout_state(args.dropout_state, params);
  } else if (args.dropout_state != nullptr) {
    return bad_argument(
        "`dropout_state` is given, and the spec takes seed and offset of the launch",
        "it is of a spec with `dropout: {p: ..., seed: device}`");
  }
  return ok_status();
}

template <typename Args>
Status fill_scalars(const AttentionSpec& spec, const Args& args, att::LaunchParams* params) {
  const auto& scalars = spec.environment.scalars;
  for (std::size_t slot = 0; slot < scalars.size(); ++slot) {
    if (scalars[slot].is_constant) continue;
    if (args.scalars == nullptr) {
      return bad_argument(
          fmt::format("`scalars` is null, and the spec takes `{}` at launch", scalars[slot].name));
    }
    params->scalars[slot].as_int = args.scalars[slot].i;
  }
  return ok_status();
}

const char* name_of(int dtype) {
  switch (dtype) {
    case ATT_FP16:
      return "fp16";
    case ATT_BF16:
      return "bf16";
    case ATT_FP32:
      return "float32";
    case ATT_FP8_E4M3:
      return "fp8_e4m3";
    case ATT_INT32:
      return "int32";
    case ATT_BOOL:
      return "bool";
  }
  return "unknown";
}

std::string sizes_text(const std::int64_t* sizes, int count) {
  return fmt::format("({})", fmt::join(sizes, sizes + count, ", "));
}

}  // namespace

Status check_view(const expr::TensorDecl& declared, const std::int64_t* sizes,
                  const att_tensor& view) {
  const char* name = declared.name.c_str();
  if (view.dtype != tensor_dtype(declared.type)) {
    return bad_argument(fmt::format("`{}` is of {}, and the spec declares {}", name,
                                    name_of(view.dtype), name_of(tensor_dtype(declared.type))));
  }
  const int ndim = static_cast<int>(declared.dims.size());
  if (view.ndim != ndim) {
    return bad_argument(
        fmt::format("`{}` has {} dims, and the spec declares {}", name, view.ndim, ndim));
  }
  if (ndim == 0) return ok_status();
  if (view.sizes == nullptr) return bad_argument(fmt::format("`sizes` of `{}` is null", name));
  if (!std::equal(sizes, sizes + ndim, view.sizes)) {
    return bad_argument(fmt::format("`{}` has sizes {}, and this launch needs {}", name,
                                    sizes_text(view.sizes, ndim), sizes_text(sizes, ndim)));
  }
  std::int64_t contiguous = 1;
  for (int i = ndim - 1; view.strides != nullptr && i >= 0; --i) {
    if (sizes[i] != 1 && view.strides[i] != contiguous) {
      return bad_argument(fmt::format("`{}` has strides {}", name, sizes_text(view.strides, ndim)),
                          "it must be contiguous, row-major");
    }
    contiguous *= sizes[i];
  }
  return ok_status();
}

namespace {

// Auxiliary tensors as a launch's arguments bring them: pointers or views.
struct TensorInputs {
  const void* const* pointers;
  const att_tensor* views;
  int view_count;
};

Status fill_tensors(const AttentionSpec& spec, const TensorInputs& given,
                    att::LaunchParams* params) {
  const auto& tensors = spec.environment.tensors;
  const bool has_views = given.views != nullptr;
  if (has_views && given.pointers != nullptr) {
    return bad_argument("`tensors` and `tensor_views` are both given", "one of them says it all");
  }
  if (has_views && given.view_count != static_cast<int>(tensors.size())) {
    return bad_argument(fmt::format("tensor_view_count is {}, and the spec has {} tensors",
                                    given.view_count, tensors.size()));
  }
  for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
    const expr::TensorDecl& declared = tensors[slot];
    const char* name = declared.name.c_str();
    if (!has_views && given.pointers == nullptr) {
      return bad_argument(fmt::format("no tensors are given, and the spec takes `{}`", name));
    }
    att::TensorArg& tensor = params->tensors[slot];
    tensor.data = has_views ? given.views[slot].data : given.pointers[slot];
    ATT_CHECK(check_pointer(name, tensor.data, tensor_element_bytes(declared.type)));
    if (!has_views) continue;
    std::int64_t sizes[att::kMaxTensorDims];
    std::ranges::copy(tensor.size, sizes);
    ATT_CHECK(check_view(declared, sizes, given.views[slot]));
  }
  return ok_status();
}

void add_tensors(const AttentionSpec& spec, const att::LaunchParams& params, Places* places) {
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot)
    places->add({spec.environment.tensors[slot].name.c_str(), params.tensors[slot].data});
}

void add_gradients(const AttentionSpec& spec, const att::LaunchParams& params, Places* places) {
  constexpr const char* kNames[] = {"d_tensors[0]", "d_tensors[1]", "d_tensors[2]", "d_tensors[3]",
                                    "d_tensors[4]", "d_tensors[5]", "d_tensors[6]", "d_tensors[7]"};
  static_assert(std::size(kNames) == att::kMaxTensors);
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot)
    places->add({kNames[slot], params.d_tensors[slot]});
}

// Where packed sequences and their pages lie, as a launch's arguments bring it.
struct SequenceInputs {
  const std::int32_t *cu_q, *cu_kv, *used_q, *used_kv;
  const std::int32_t* page_table = nullptr;
  PageSizes pages = {};
};

// What stands there is the device's, and kernels clamp it.
Status fill_sequences(const AttentionSpec& spec, const SequenceInputs& args,
                      att::LaunchParams* params) {
  struct Given {
    const char* name;
    const std::int32_t* pointer;
    bool of_thd, of_paged;  // of which layouts it is
    bool needed;            // of these
  };
  const bool paged = is_paged(spec);
  for (const auto& [name, pointer, of_thd, of_paged, needed] :
       {Given{"cu_q", args.cu_q, true, true, true},
        {"cu_kv", args.cu_kv, true, false, true},
        {"used_q", args.used_q, true, true, false},
        {"used_kv", args.used_kv, true, true, paged},
        {"page_table", args.page_table, false, true, true}}) {
    const bool is_known = paged ? of_paged : of_thd && is_packed(spec);
    if (!is_known && pointer != nullptr) {
      return bad_argument(
          fmt::format("`{}` is given, and the spec's layout is {}", name, to_string(spec.layout)),
          of_thd && of_paged ? "it is of sequences packed with layout `thd` or `paged`"
          : of_thd           ? "it is of sequences packed with layout `thd`"
                             : "it is of keys in pages, layout `paged`");
    }
    if (is_known && (needed || pointer != nullptr)) {
      ATT_CHECK(check_pointer(name, pointer, alignof(std::int32_t)));
    }
  }
  if (paged) {
    params->page_table = page_table_of(args.page_table, args.pages);
  }
  params->sequences = {.cu_q = args.cu_q,
                       .cu_kv = args.cu_kv,
                       .used_q = args.used_q,
                       .used_kv = args.used_kv,
                       .items = nullptr};
  return ok_status();
}

// What a launch says of its pages, but for the table. kernels count rows and pages in 31 bits.
Status check_pages(const AttentionSpec& spec, const att_forward_args& args) {
  for (const auto& [name, value] : {std::pair{"pages_per_sequence", args.pages_per_sequence},
                                    {"page_size", args.page_size},
                                    {"pages", args.pages}}) {
    if (!is_paged(spec) && value != 0) {
      return bad_argument(
          fmt::format("`{}` is given, and the spec's layout is {}", name, to_string(spec.layout)),
          "it is of keys in pages, layout `paged`");
    }
    if (is_paged(spec) && (value < 1 || value > kMaxPages)) {
      return bad_argument(fmt::format("`{}` is {}, not in 1 to {}", name, value, kMaxPages));
    }
  }
  if (is_paged(spec) && args.shape.kv_len > args.pages_per_sequence * args.page_size) {
    return bad_argument(fmt::format("shape.kv_len is {}, and {} pages of {} rows have less room",
                                    args.shape.kv_len, args.pages_per_sequence, args.page_size),
                        "it is the most keys that one sequence may have");
  }
  return ok_status();
}

// An fp32 tensor that may be left out.
Status check_optional(const char* name, const float* pointer) {
  if (pointer == nullptr) return ok_status();
  return check_pointer(name, pointer, alignof(float));
}

// Slices of k and v along the batch stride, and the rows of each.
struct KeySlices {
  std::int64_t count, rows;
};

// Where V is a part of K a launch says of K where it lies. What it says of V may be left out, or is
// the same: then the host means what the spec says. `k_stride`: as far as it is stepped.
Status check_shared_v(const AttentionSpec& spec, const Operand& v, const void* k,
                      const att::Strides& k_stride) {
  if (v.data != nullptr && v.data != k) {
    return bad_argument(
        fmt::format("`v` is not `k`, and the spec has v_in_k: V is the first {} columns of K",
                    spec.head_dim_v),
        "leave `v` null, or hand over `k` again");
  }
  const auto [batch, seq, head] = v.strides;
  const bool is_left_out = batch == 0 && seq == 0 && head == 0;
  const bool is_same = (v.batch == 1 || batch == k_stride.batch) &&
                       (v.seq == 1 || seq == k_stride.seq) &&
                       (v.heads == 1 || head == k_stride.head);
  if (is_left_out || is_same) return ok_status();
  return bad_argument("`v_strides` are not those of `k`, and the spec has v_in_k",
                      "leave them zero: V lies where K does");
}

// What a launch of either pass has, o and lse left out.
template <typename Args>
Status fill_common(const AttentionSpec& spec, const Args& args, const ProblemShape& shape,
                   const KeySlices& keys, att::LaunchParams* params) {
  *params = params_of(spec, shape);
  const int qk = spec.head_dim_qk;
  const int v = spec.head_dim_v;
  ATT_CHECK(fill_operand(
      spec, {"q", args.q, args.q_strides, slice_count(spec, shape), shape.q_len, shape.heads, qk},
      &params->q_stride));
  const DType cache = kv_dtype(spec);
  ATT_CHECK(fill_operand(cache, spec.layout,
                         {"k", args.k, args.k_strides, keys.count, keys.rows, shape.kv_heads, qk},
                         &params->k_stride));
  const Operand own_v = {"v", args.v, args.v_strides, keys.count, keys.rows, shape.kv_heads, v};
  ATT_CHECK(spec.v_in_k ? check_shared_v(spec, own_v, args.k, params->k_stride)
                        : fill_operand(cache, spec.layout, own_v, &params->v_stride));
  if (args.workspace != nullptr) {
    ATT_CHECK(check_pointer("workspace", args.workspace, kWorkspaceAlignmentBytes));
  }
  params->q = args.q;
  params->k = args.k;
  params->v = args.v;
  take_v_from_k(spec, params);
  if (spec.softmax_scale.at_launch &&
      !(args.softmax_scale > 0 && std::isfinite(args.softmax_scale))) {
    return bad_argument(
        fmt::format("softmax_scale is {}, not above 0 and finite", args.softmax_scale));
  }
  params->softmax_scale = spec.softmax_scale.at_launch
                              ? args.softmax_scale
                              : static_cast<float>(spec.softmax_scale.value);
  ATT_CHECK(fill_dropout(spec, args, params));
  return fill_scalars(spec, args, params);
}

// Gradients of learned tensors and of the sink, where they are asked for.
Status fill_learned(const AttentionSpec& spec, const att_backward_args& args,
                    att::LaunchParams* params) {
  ATT_CHECK(check_gradient_count(spec, args));
  const auto& tensors = spec.environment.tensors;
  for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
    float* gradient = args.d_tensors == nullptr ? nullptr : args.d_tensors[slot];
    if (gradient != nullptr && !tensors[slot].grad) {
      return bad_argument(
          fmt::format("`d_tensors` asks for the gradient of `{}`", tensors[slot].name),
          "the spec does not declare it with grad: true");
    }
    ATT_CHECK(check_optional("d_tensors", gradient));
    params->d_tensors[slot] = gradient;
  }
  if (args.d_sink != nullptr && spec.sink == nullptr) {
    return bad_argument("`d_sink` is given, and the spec has no sink");
  }
  ATT_CHECK(check_optional("d_sink", args.d_sink));
  params->d_sink = args.d_sink;
  return ok_status();
}

}  // namespace

int tensor_dtype(expr::TensorType type) {
  switch (type) {
    case expr::TensorType::kInt32:
      return ATT_INT32;
    case expr::TensorType::kFloat32:
      return ATT_FP32;
    case expr::TensorType::kFloat16:
      return ATT_FP16;
    case expr::TensorType::kBFloat16:
      return ATT_BF16;
    case expr::TensorType::kBool:
      break;
  }
  return ATT_BOOL;
}

template <typename Args>
Status check_workspace(std::size_t needed, Args* args) {
  if (needed == 0) args->workspace = nullptr;
  const std::size_t given = args->workspace_bytes;
  if (given == 0 || given >= needed) return ok_status();
  return bad_argument(fmt::format("workspace_bytes is {}, and this launch needs {}", given, needed),
                      "ask att_kernel_workspace_bytes for the shape of the launch");
}
template Status check_workspace(std::size_t, att_forward_args*);
template Status check_workspace(std::size_t, att_backward_args*);

Status check_gradient_count(const AttentionSpec& spec, const att_backward_args& args) {
  const std::size_t tensors = spec.environment.tensors.size();
  if (args.d_tensors == nullptr || args.d_tensor_count == static_cast<int>(tensors))
    return ok_status();
  return bad_argument(fmt::format("d_tensor_count is {}, and the spec has {} tensors",
                                  args.d_tensor_count, tensors));
}

Status fill_forward_params(const AttentionSpec& spec, const att_forward_args& args,
                           const ProblemShape& shape, att::LaunchParams* params) {
  ATT_CHECK(check_pages(spec, args));
  const KeySlices keys = is_paged(spec) ? KeySlices{args.pages, args.page_size}
                                        : KeySlices{slice_count(spec, shape), shape.kv_len};
  ATT_CHECK(fill_common(spec, args, shape, keys, params));
  ATT_CHECK(fill_operand(spec,
                         {"o", args.o, args.o_strides, slice_count(spec, shape), shape.q_len,
                          shape.heads, spec.head_dim_v, true},
                         &params->o_stride));
  ATT_CHECK(check_optional("lse", args.lse));
  ATT_CHECK(fill_cache_scales(has_scaled_cache(spec), {keys.count, shape.kv_heads}, args, params));
  params->o = args.o;
  params->lse = args.lse;
  ATT_CHECK(fill_sequences(spec,
                           {args.cu_q,
                            args.cu_kv,
                            args.used_q,
                            args.used_kv,
                            args.page_table,
                            {args.pages_per_sequence, args.page_size, args.pages}},
                           params));
  ATT_CHECK(fill_tensors(spec, {args.tensors, args.tensor_views, args.tensor_view_count}, params));
  const Places written = {{"o", args.o}, {"lse", args.lse}, {"workspace", args.workspace}};
  Places read = {{"q", args.q}, {"k", args.k}, {"v", args.v}};
  add_tensors(spec, *params, &read);
  return check_apart(written, read);
}

Status fill_backward_params(const AttentionSpec& spec, const att_backward_args& args,
                            const ProblemShape& shape, att::LaunchParams* params) {
  const std::int64_t slices = slice_count(spec, shape);
  ATT_CHECK(fill_common(spec, args, shape, {slices, shape.kv_len}, params));
  const auto& [batch, heads, kv_heads, q_len, kv_len] = shape;
  const int qk = spec.head_dim_qk;
  const int v = spec.head_dim_v;
  const auto fill = [&](const Operand& operand, att::Strides* strides) {
    return fill_operand(spec, operand, strides);
  };
  ATT_CHECK(fill({"o", args.o, args.o_strides, slices, q_len, heads, v}, &params->o_stride));
  ATT_CHECK(
      fill({"d_o", args.d_o, args.d_o_strides, slices, q_len, heads, v}, &params->d_o_stride));
  ATT_CHECK(fill({"d_q", args.d_q, args.d_q_strides, slices, q_len, heads, qk, true},
                 &params->d_q_stride));
  ATT_CHECK(fill({"d_k", args.d_k, args.d_k_strides, slices, kv_len, kv_heads, qk, true},
                 &params->d_k_stride));
  ATT_CHECK(fill({"d_v", args.d_v, args.d_v_strides, slices, kv_len, kv_heads, v, true},
                 &params->d_v_stride));
  ATT_CHECK(check_pointer("lse", args.lse, alignof(float)));
  ATT_CHECK(check_optional("d_lse", args.d_lse));
  // Read only; the forward pass writes through the same fields.
  params->o = const_cast<void*>(args.o);
  params->lse = const_cast<float*>(args.lse);
  params->d_o = args.d_o;
  params->d_lse = args.d_lse;
  params->d_q = args.d_q;
  params->d_k = args.d_k;
  params->d_v = args.d_v;
  ATT_CHECK(fill_sequences(spec, {args.cu_q, args.cu_kv, args.used_q, args.used_kv}, params));
  ATT_CHECK(fill_tensors(spec, {nullptr, args.tensor_views, args.tensor_view_count}, params));
  ATT_CHECK(fill_learned(spec, args, params));
  Places written = {{"d_q", args.d_q},
                    {"d_k", args.d_k},
                    {"d_v", args.d_v},
                    {"d_sink", args.d_sink},
                    {"workspace", args.workspace}};
  add_gradients(spec, *params, &written);
  Places read = {{"q", args.q},     {"k", args.k},     {"v", args.v},        {"o", args.o},
                 {"lse", args.lse}, {"d_o", args.d_o}, {"d_lse", args.d_lse}};
  add_tensors(spec, *params, &read);
  return check_apart(written, read);
}

}  // namespace attune
