// Where the header's first version has each field, and what each name stands for. Compiled once
// against that header and once against today's.
#include "tests/unit/runtime/abi_layout.hpp"

#include <attune/attune.h>

#include <cstddef>

#define FIELD(type, field) \
  {#type "." #field, static_cast<long>(offsetof(type, field)), sizeof(type::field)}
#define WHOLE(type) {#type, 0, sizeof(type)}
#define VALUE(name) {#name, name, 0}

std::vector<AbiEntry> ABI_LAYOUT() {
  return {
      FIELD(att_runtime_options, struct_size),
      FIELD(att_runtime_options, device),
      FIELD(att_runtime_options, cache_file),
      FIELD(att_runtime_options, background),
      FIELD(att_spec_info, struct_size),
      FIELD(att_spec_info, dtype),
      FIELD(att_spec_info, layout),
      FIELD(att_spec_info, head_dim_qk),
      FIELD(att_spec_info, head_dim_v),
      FIELD(att_spec_info, scalar_count),
      FIELD(att_spec_info, tensor_count),
      FIELD(att_spec_info, softmax_scale_at_launch),
      FIELD(att_spec_info, dropout_at_launch),
      FIELD(att_shape, batch),
      FIELD(att_shape, heads),
      FIELD(att_shape, kv_heads),
      FIELD(att_shape, q_len),
      FIELD(att_shape, kv_len),
      FIELD(att_strides, batch),
      FIELD(att_strides, seq),
      FIELD(att_strides, head),
      FIELD(att_scalar, i),
      FIELD(att_scalar, f),
      FIELD(att_forward_args, struct_size),
      FIELD(att_forward_args, shape),
      FIELD(att_forward_args, q),
      FIELD(att_forward_args, k),
      FIELD(att_forward_args, v),
      FIELD(att_forward_args, o),
      FIELD(att_forward_args, lse),
      FIELD(att_forward_args, workspace),
      FIELD(att_forward_args, q_strides),
      FIELD(att_forward_args, k_strides),
      FIELD(att_forward_args, v_strides),
      FIELD(att_forward_args, o_strides),
      FIELD(att_forward_args, softmax_scale),
      FIELD(att_forward_args, dropout),
      FIELD(att_forward_args, dropout_seed),
      FIELD(att_forward_args, dropout_offset),
      FIELD(att_forward_args, scalars),
      FIELD(att_forward_args, tensors),
      // Arrays and other structs hold these.
      WHOLE(att_shape),
      WHOLE(att_strides),
      WHOLE(att_scalar),
      VALUE(ATT_OK),
      VALUE(ATT_FAILED),
      VALUE(ATT_BAD_INPUT),
      VALUE(ATT_UNSUPPORTED),
      VALUE(ATT_UNAVAILABLE),
      VALUE(ATT_FP16),
      VALUE(ATT_BF16),
      VALUE(ATT_FP32),
      VALUE(ATT_FP8_E4M3),
      VALUE(ATT_BSHD),
      VALUE(ATT_BHSD),
  };
}
