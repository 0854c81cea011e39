#include "attune_attention.hpp"

#include <algorithm>
#include <type_traits>

#include "shared.hpp"

namespace train {
namespace {

[[noreturn]] void fail(const attune::Error& error) {
  throw Error(error.code == ATT_UNAVAILABLE || error.code == ATT_UNSUPPORTED ? Exit::kNothingToRunOn
              : error.code == ATT_BAD_INPUT                                  ? Exit::kBadInput
                                                                             : Exit::kFailed,
              error.message);
}
void check(const attune::Status& status) {
  if (!status) fail(status.error());
}
template <typename T>
T take(attune::Result<T> result) {
  if (!result) fail(result.error());
  return std::move(*result);
}

attune::Runtime runtime_on(const std::string& device) {
  attune::RuntimeOptions options;
  options.device = device;
  return take(attune::Runtime::create(options));
}

attune::Shape launch_shape(const AttentionShape& shape) {
  const auto of = [](std::size_t size) { return static_cast<std::int64_t>(size); };
  return {of(shape.batch), of(shape.heads), of(shape.kv_heads), of(shape.length), of(shape.length)};
}

std::size_t workspace_bytes(const attune::Kernel& kernel, const attune::Shape& shape) {
  const std::size_t bytes = kernel.workspace_bytes(shape);
  if (bytes == SIZE_MAX) throw Error(Exit::kBadInput, att_last_error());
  return bytes;
}

// Of a matrix [batch, length, columns], whose heads lie side by side in its rows.
attune::Strides strides_of(const AttentionShape& shape, std::size_t columns) {
  const auto row = static_cast<std::int64_t>(columns);
  return {row * static_cast<std::int64_t>(shape.length), row,
          static_cast<std::int64_t>(shape.head_dim)};
}

}  // namespace

AttuneAttention::AttuneAttention(Dense<float>& dense, const std::string& device,
                                 const std::string& spec_file, const AttentionShape& shape,
                                 std::uint64_t seed)
    : dense_(dense),
      shape_(shape),
      seed_(seed),
      launch_(launch_shape(shape)),
      runtime_(runtime_on(device)),
      spec_(take(attune::Spec::from_file(spec_file))),
      doc_slot_(spec_.tensor_slot("doc")),
      bias_slot_(spec_.tensor_slot("bias")),
      is_bf16_(spec_.info().dtype == ATT_BF16),
      forward_((check_spec(), take(runtime_.kernel(spec_, launch_)))),
      backward_(take(runtime_.kernel(spec_, launch_, attune::Pass::kBackward))),
      doc_sizes_(take(spec_.tensor_sizes(doc_slot_, launch_))),
      bias_sizes_(take(spec_.tensor_sizes(bias_slot_, launch_))),
      workspace_(dense.memory(), std::max(workspace_bytes(forward_, launch_),
                                          workspace_bytes(backward_, launch_))) {
  if (!is_bf16_) return;
  const std::size_t rows = shape.batch * shape.length;
  const auto make = [&](std::size_t columns) {
    return Array<std::uint16_t>(dense.memory(), rows * columns);
  };
  bf16_.emplace(Bf16{make(shape.qkv_columns()), make(shape.o_columns()), make(shape.o_columns()),
                     make(shape.qkv_columns())});
}

void AttuneAttention::check_spec() const {
  const attune::SpecInfo info = spec_.info();
  const auto head_dim = static_cast<int>(shape_.head_dim);
  const auto refuse = [&](const std::string& why) {
    throw Error(Exit::kBadInput, std::string(info.name) + ": " + why);
  };
  // The gradient of a mean over a thousand tokens is too small for fp16.
  if (info.dtype != ATT_FP32 && info.dtype != ATT_BF16) {
    refuse("the model trains with attention in fp32 or bf16, the spec's dtype is another");
  }
  if (info.layout == ATT_THD) refuse("the model's rows have one length, layout thd is for others");
  if (info.head_dim_qk != head_dim || info.head_dim_v != head_dim) {
    refuse("the model's head_dim is " + std::to_string(head_dim));
  }
  if (doc_slot_ < 0 || bias_slot_ < 0 || info.tensor_count != 2) {
    refuse("the model has the tensors doc and bias, and no others");
  }
  for (int slot = 0; slot < info.scalar_count; ++slot) {
    if (!take(spec_.scalar(slot)).is_constant) refuse("the model has no scalar to hand over");
  }
  if (info.softmax_scale_at_launch != 0 || info.dropout_at_launch != 0) {
    refuse("softmax_scale and dropout are the spec's to say");
  }
  const std::vector<std::int64_t> sizes = take(spec_.tensor_sizes(bias_slot_, launch_));
  if (sizes !=
          std::vector<std::int64_t>{launch_.heads, static_cast<std::int64_t>(shape_.distances)} ||
      take(spec_.tensor(bias_slot_)).grad == 0) {
    refuse("bias must be [heads, " + std::to_string(shape_.distances) + "] with grad: true");
  }
}

std::vector<attune::Tensor> AttuneAttention::tensors(const AttentionPass<float>& pass) const {
  std::vector<attune::Tensor> views(2);
  views[static_cast<std::size_t>(doc_slot_)] = {pass.doc, doc_sizes_.data(), nullptr, ATT_INT32,
                                                static_cast<int>(doc_sizes_.size())};
  views[static_cast<std::size_t>(bias_slot_)] = {pass.bias, bias_sizes_.data(), nullptr, ATT_FP32,
                                                 static_cast<int>(bias_sizes_.size())};
  return views;
}

const void* AttuneAttention::operand(const float* data, Array<std::uint16_t> Bf16::* to) {
  if (!is_bf16_) return data;
  Array<std::uint16_t>& rounded = (*bf16_).*to;
  dense_.to_bf16(rounded.size(), data, rounded.data());
  return rounded.data();
}

void* AttuneAttention::result(float* data, Array<std::uint16_t> Bf16::* from) {
  return is_bf16_ ? static_cast<void*>(((*bf16_).*from).data()) : data;
}

void AttuneAttention::finish(float* data, Array<std::uint16_t> Bf16::* from) {
  if (!is_bf16_) return;
  const Array<std::uint16_t>& rounded = (*bf16_).*from;
  dense_.from_bf16(rounded.size(), rounded.data(), data);
}

template <typename Void>
Void* AttuneAttention::at(Void* matrix, std::size_t column) const {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  const std::size_t bytes = is_bf16_ ? sizeof(std::uint16_t) : sizeof(float);
  return static_cast<Byte*>(matrix) + column * bytes;
}

void AttuneAttention::forward(const AttentionPass<float>& pass) {
  const std::vector<attune::Tensor> views = tensors(pass);
  const std::size_t k_column = shape_.heads * shape_.head_dim;
  const std::size_t v_column = k_column + shape_.kv_heads * shape_.head_dim;
  attune::ForwardArgs args;
  args.shape = launch_;
  args.q = operand(pass.qkv, &Bf16::qkv);
  args.k = at(args.q, k_column);
  args.v = at(args.q, v_column);
  args.q_strides = args.k_strides = args.v_strides = strides_of(shape_, shape_.qkv_columns());
  args.o = result(pass.o, &Bf16::o);
  args.o_strides = strides_of(shape_, shape_.o_columns());
  args.lse = pass.lse;
  args.dropout_seed = seed_;
  args.dropout_offset = pass.offset;
  args.tensor_views = views.data();
  args.tensor_view_count = static_cast<int>(views.size());
  args.workspace = workspace_.data();
  args.workspace_bytes = workspace_.size();
  check(forward_.forward(args, dense_.stream()));
  finish(pass.o, &Bf16::o);
}

// What was rounded to bf16 is rounded once more: the same bits, and no copy of each layer's to
// keep.
void AttuneAttention::backward(const AttentionPass<float>& pass,
                               const AttentionGradients<float>& gradients) {
  const std::vector<attune::Tensor> views = tensors(pass);
  std::vector<float*> d_tensors(views.size(), nullptr);
  d_tensors[static_cast<std::size_t>(bias_slot_)] = gradients.d_bias;
  const std::size_t k_column = shape_.heads * shape_.head_dim;
  const std::size_t v_column = k_column + shape_.kv_heads * shape_.head_dim;
  attune::BackwardArgs args;
  args.shape = launch_;
  args.q = operand(pass.qkv, &Bf16::qkv);
  args.k = at(args.q, k_column);
  args.v = at(args.q, v_column);
  args.o = operand(pass.o, &Bf16::o);
  args.lse = pass.lse;
  args.d_o = operand(gradients.d_o, &Bf16::d_o);
  args.d_q = result(gradients.d_qkv, &Bf16::d_qkv);
  args.d_k = at(args.d_q, k_column);
  args.d_v = at(args.d_q, v_column);
  args.q_strides = args.k_strides = args.v_strides = strides_of(shape_, shape_.qkv_columns());
  args.d_q_strides = args.d_k_strides = args.d_v_strides = args.q_strides;
  args.o_strides = args.d_o_strides = strides_of(shape_, shape_.o_columns());
  args.dropout_seed = seed_;
  args.dropout_offset = pass.offset;
  args.tensor_views = views.data();
  args.tensor_view_count = static_cast<int>(views.size());
  args.d_tensors = d_tensors.data();
  args.d_tensor_count = static_cast<int>(d_tensors.size());
  args.workspace = workspace_.data();
  args.workspace_bytes = workspace_.size();
  check(backward_.backward(args, dense_.stream()));
  finish(gradients.d_qkv, &Bf16::d_qkv);
}

}  // namespace train
