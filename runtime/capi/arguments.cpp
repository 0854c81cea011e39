#include "runtime/capi/arguments.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "generator/spec/shape.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

constexpr int kAlignmentBytes = 16;

Error bad_argument(std::string message, std::string hint = {}) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "bad-argument",
               .message = std::move(message),
               .hint = std::move(hint)};
}

// A tensor with strides, as the caller names it.
struct Operand {
  const char* name;
  const void* data;
  const att_strides& strides;
  std::int64_t seq, heads;
  int dim;
};

Status check_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) return bad_argument(fmt::format("`{}` is null", name));
  if (std::bit_cast<std::uintptr_t>(pointer) % kAlignmentBytes != 0) {
    return bad_argument(fmt::format("`{}` is not aligned to {} bytes", name, kAlignmentBytes));
  }
  return ok_status();
}

// A dim of size 1 is never stepped, so its stride does not matter.
bool aligned(std::int64_t stride, std::int64_t size, int element_bytes) {
  return size == 1 || stride * element_bytes % kAlignmentBytes == 0;
}

Status fill_operand(const AttentionSpec& spec, const Operand& operand, std::int64_t batch,
                    att::Strides* strides) {
  ATT_CHECK(check_pointer(operand.name, operand.data));
  const att_strides& given = operand.strides;
  if (given.batch == 0 && given.seq == 0 && given.head == 0) {
    *strides = contiguous_strides(spec.layout, operand.seq, operand.heads, operand.dim);
  } else {
    *strides = {given.batch, given.seq, given.head};
  }
  const int bytes = element_bytes(spec.dtype);
  if (!aligned(strides->batch, batch, bytes) || !aligned(strides->seq, operand.seq, bytes) ||
      !aligned(strides->head, operand.heads, bytes)) {
    return bad_argument(fmt::format("a stride of `{}` is not a multiple of {} bytes", operand.name,
                                    kAlignmentBytes),
                        fmt::format("(batch, seq, head) = ({}, {}, {}) elements", strides->batch,
                                    strides->seq, strides->head));
  }
  return ok_status();
}

Status fill_dropout(const AttentionSpec& spec, const att_forward_args& args,
                    att::ForwardParams* params) {
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
  params->dropout_drop_below = static_cast<unsigned>(drop_below);
  params->dropout_keep_scale = 256.0f / static_cast<float>(256 - drop_below);
  params->dropout_seed = args.dropout_seed;
  params->dropout_offset = args.dropout_offset;
  return ok_status();
}

Status fill_scalars(const AttentionSpec& spec, const att_forward_args& args,
                    att::ForwardParams* params) {
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

Status fill_tensors(const AttentionSpec& spec, const att_forward_args& args,
                    const ProblemShape& shape, att::ForwardParams* params) {
  const auto& tensors = spec.environment.tensors;
  for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
    const char* name = tensors[slot].name.c_str();
    if (args.tensors == nullptr) {
      return bad_argument(fmt::format("`tensors` is null, and the spec takes `{}`", name));
    }
    ATT_CHECK(check_pointer(name, args.tensors[slot]));
    att::TensorArg& tensor = params->tensors[slot];
    tensor.data = args.tensors[slot];
    tensor.block_ranges = nullptr;
    for (std::size_t i = 0; i < att::kMaxTensorDims; ++i) {
      const auto& dims = tensors[slot].dims;
      tensor.size[i] = i < dims.size() ? static_cast<int>(dim_size(dims[i], shape)) : 1;
    }
  }
  return ok_status();
}

}  // namespace

Result<ProblemShape> checked_shape(const att_shape& shape) {
  const ProblemShape checked{.batch = shape.batch,
                             .heads = shape.heads,
                             .kv_heads = shape.kv_heads,
                             .q_len = shape.q_len,
                             .kv_len = shape.kv_len};
  for (const ShapeField& field : shape_fields()) {
    const std::int64_t size = checked.*field.member;
    if (size < 1 || size > field.largest) {
      return bad_argument(
          fmt::format("shape.{} is {}, not in 1 to {}", field.name, size, field.largest));
    }
  }
  if (checked.heads % checked.kv_heads != 0) {
    return bad_argument(fmt::format("shape.heads = {} is no multiple of shape.kv_heads = {}",
                                    checked.heads, checked.kv_heads));
  }
  return checked;
}

Status fill_forward_params(const AttentionSpec& spec, const att_forward_args& args,
                           att::ForwardParams* params) {
  ATT_TRY(const ProblemShape shape, checked_shape(args.shape));
  const auto& [batch, heads, kv_heads, q_len, kv_len] = args.shape;
  const int qk = spec.head_dim_qk;
  const int v = spec.head_dim_v;
  ATT_CHECK(fill_operand(spec, {"q", args.q, args.q_strides, q_len, heads, qk}, batch,
                         &params->q_stride));
  ATT_CHECK(fill_operand(spec, {"k", args.k, args.k_strides, kv_len, kv_heads, qk}, batch,
                         &params->k_stride));
  ATT_CHECK(fill_operand(spec, {"v", args.v, args.v_strides, kv_len, kv_heads, v}, batch,
                         &params->v_stride));
  ATT_CHECK(
      fill_operand(spec, {"o", args.o, args.o_strides, q_len, heads, v}, batch, &params->o_stride));
  if (args.workspace != nullptr) ATT_CHECK(check_pointer("workspace", args.workspace));
  params->q = args.q;
  params->k = args.k;
  params->v = args.v;
  params->o = args.o;
  params->lse = args.lse;
  params->scheduler_counter = nullptr;
  params->batch = static_cast<int>(batch);
  params->heads = static_cast<int>(heads);
  params->kv_heads = static_cast<int>(kv_heads);
  params->q_len = static_cast<int>(q_len);
  params->kv_len = static_cast<int>(kv_len);
  params->softmax_scale = spec.softmax_scale.at_launch
                              ? args.softmax_scale
                              : static_cast<float>(spec.softmax_scale.value);
  ATT_CHECK(fill_dropout(spec, args, params));
  ATT_CHECK(fill_scalars(spec, args, params));
  return fill_tensors(spec, args, shape, params);
}

}  // namespace attune
