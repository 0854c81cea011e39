#include "attune_attention.hpp"

#include <algorithm>

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

AttuneAttention::AttuneAttention(Memory& memory, const std::string& device,
                                 const std::string& spec_file, const AttentionShape& shape,
                                 std::uint64_t seed)
    : shape_(shape),
      seed_(seed),
      launch_(launch_shape(shape)),
      runtime_(runtime_on(device)),
      spec_(take(attune::Spec::from_file(spec_file))),
      doc_slot_(spec_.tensor_slot("doc")),
      bias_slot_(spec_.tensor_slot("bias")),
      forward_((check_spec(), take(runtime_.kernel(spec_, launch_)))),
      backward_(take(runtime_.kernel(spec_, launch_, attune::Pass::kBackward))),
      doc_sizes_(take(spec_.tensor_sizes(doc_slot_, launch_))),
      bias_sizes_(take(spec_.tensor_sizes(bias_slot_, launch_))),
      workspace_(memory, std::max(workspace_bytes(forward_, launch_),
                                  workspace_bytes(backward_, launch_))) {}

void AttuneAttention::check_spec() const {
  const attune::SpecInfo info = spec_.info();
  const auto head_dim = static_cast<int>(shape_.head_dim);
  const auto refuse = [&](const std::string& why) {
    throw Error(Exit::kBadInput, std::string(info.name) + ": " + why);
  };
  if (info.dtype != ATT_FP32) refuse("the model is fp32, the spec's dtype is not");
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

void AttuneAttention::forward(const AttentionPass<float>& pass) {
  const std::vector<attune::Tensor> views = tensors(pass);
  const std::size_t k_column = shape_.heads * shape_.head_dim;
  const std::size_t v_column = k_column + shape_.kv_heads * shape_.head_dim;
  attune::ForwardArgs args;
  args.shape = launch_;
  args.q = pass.qkv;
  args.k = pass.qkv + k_column;
  args.v = pass.qkv + v_column;
  args.q_strides = args.k_strides = args.v_strides = strides_of(shape_, shape_.qkv_columns());
  args.o = pass.o;
  args.o_strides = strides_of(shape_, shape_.o_columns());
  args.lse = pass.lse;
  args.dropout_seed = seed_;
  args.dropout_offset = pass.offset;
  args.tensor_views = views.data();
  args.tensor_view_count = static_cast<int>(views.size());
  args.workspace = workspace_.data();
  args.workspace_bytes = workspace_.size();
  check(forward_.forward(args));
}

void AttuneAttention::backward(const AttentionPass<float>& pass,
                               const AttentionGradients<float>& gradients) {
  const std::vector<attune::Tensor> views = tensors(pass);
  std::vector<float*> d_tensors(views.size(), nullptr);
  d_tensors[static_cast<std::size_t>(bias_slot_)] = gradients.d_bias;
  const std::size_t k_column = shape_.heads * shape_.head_dim;
  const std::size_t v_column = k_column + shape_.kv_heads * shape_.head_dim;
  attune::BackwardArgs args;
  args.shape = launch_;
  args.q = pass.qkv;
  args.k = pass.qkv + k_column;
  args.v = pass.qkv + v_column;
  args.o = pass.o;
  args.lse = pass.lse;
  args.d_o = gradients.d_o;
  args.d_q = gradients.d_qkv;
  args.d_k = gradients.d_qkv + k_column;
  args.d_v = gradients.d_qkv + v_column;
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
  check(backward_.backward(args));
}

}  // namespace train
