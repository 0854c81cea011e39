#include "paged_attention.hpp"

#include <algorithm>

namespace serve {
namespace {

[[noreturn]] void fail(const attune::Error& error) {
  throw Error(error.code == ATT_UNAVAILABLE || error.code == ATT_UNSUPPORTED ? Exit::kNothingToRunOn
              : error.code == ATT_BAD_INPUT                                  ? Exit::kBadInput
                                                                             : Exit::kFailed,
              error.message);
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

std::int64_t of(std::size_t size) { return static_cast<std::int64_t>(size); }

std::size_t workspace_bytes(const attune::Kernel& kernel, const attune::Shape& shape) {
  const std::size_t bytes = kernel.workspace_bytes(shape);
  if (bytes == SIZE_MAX) throw Error(Exit::kBadInput, att_last_error());
  return bytes;
}

attune::AppendOptions append_options(const ModelShape& model) {
  attune::AppendOptions options;
  options.dtype = options.cache_dtype = ATT_FP32;
  options.head_dim_qk = options.head_dim_v = static_cast<int>(model.head_dim);
  options.rope = ATT_ROPE_HALF;
  return options;
}

}  // namespace

PagedAttention::PagedAttention(Memory& memory, const std::string& device,
                               const std::string& spec_file, const ModelShape& model,
                               const CacheShape& cache, const Capacity& capacity)
    : model_(model),
      cache_(cache),
      capacity_(capacity),
      memory_(memory),
      launch_{of(capacity.sequences), of(model.heads), of(model.kv_heads), of(capacity.rows),
              of(capacity.keys)},
      runtime_(runtime_on(device)),
      spec_(take(attune::Spec::from_file(spec_file))),
      kernel_((check_spec(), take(runtime_.kernel(spec_, launch_)))),
      append_(take(runtime_.append_kernel(append_options(model)))),
      sees_sizes_(take(spec_.tensor_sizes(0, launch_))),
      cu_q_(memory, capacity.sequences + 1),
      used_kv_(memory, capacity.sequences),
      page_table_(memory, capacity.sequences * capacity.pages_per_sequence),
      positions_(memory, capacity.rows),
      sees_(memory, capacity.rows * kSeenColumns),
      workspace_(memory, workspace_bytes(kernel_, launch_)) {}

void PagedAttention::check_spec() const {
  const attune::SpecInfo info = spec_.info();
  const auto head_dim = static_cast<int>(model_.head_dim);
  const auto refuse = [&](const std::string& why) {
    throw Error(Exit::kBadInput, std::string(info.name) + ": " + why);
  };
  if (info.dtype != ATT_FP32) refuse("the model is fp32, the spec's dtype is not");
  if (info.layout != ATT_PAGED) refuse("the model's cache has pages, the spec's layout is another");
  if (info.head_dim_qk != head_dim || info.head_dim_v != head_dim) {
    refuse("the model's head_dim is " + std::to_string(head_dim));
  }
  if (info.tensor_count != 1 || spec_.tensor_slot("sees") != 0 ||
      take(spec_.tensor(0)).dtype != ATT_BOOL ||
      take(spec_.tensor_sizes(0, launch_)) !=
          std::vector<std::int64_t>{of(capacity_.rows), of(kSeenColumns)}) {
    refuse("the model has one tensor, sees: {dtype: bool, dims: [q_len, " +
           std::to_string(kSeenColumns) + "]}");
  }
  for (int slot = 0; slot < info.scalar_count; ++slot) {
    if (!take(spec_.scalar(slot)).is_constant) refuse("the model has no scalar to hand over");
  }
  if (info.softmax_scale_at_launch != 0 || info.dropout_at_launch != 0 || info.dropout != 0) {
    refuse("softmax_scale is the spec's to say, and there is no dropout");
  }
}

void PagedAttention::begin(const Batch& batch) {
  cu_q_.write(batch.cu_q);
  used_kv_.write(batch.used_kv);
  page_table_.write(batch.page_table);
  memory_.write(positions_.data(), batch.positions.data(),
                batch.positions.size() * sizeof(std::int32_t));
  memory_.write(sees_.data(), batch.sees.data(), batch.sees.size());
}

void PagedAttention::append(std::size_t layer, float* qkv, float* cache) {
  attune::AppendArgs args;
  args.layout = ATT_PAGED;
  args.shape = launch_;
  args.q = args.q_out = qkv;
  args.k = qkv + model_.q_columns();
  args.v = qkv + model_.q_columns() + model_.kv_columns();
  args.q_strides = args.k_strides =
      args.v_strides = {0, of(model_.qkv_columns()), of(model_.head_dim)};
  args.k_cache = cache + cache_.keys(layer);
  args.v_cache = cache + cache_.values(layer);
  args.k_cache_strides =
      args.v_cache_strides = {of(cache_.page()), of(cache_.columns), of(model_.head_dim)};
  args.cu_q = cu_q_.data();
  args.used_kv = used_kv_.data();
  args.positions = positions_.data();
  args.page_table = page_table_.data();
  args.pages_per_sequence = of(capacity_.pages_per_sequence);
  args.page_size = of(cache_.page_size);
  args.pages = of(cache_.pages);
  if (const attune::Status status = append_.append(args); !status) fail(status.error());
}

void PagedAttention::forward(std::size_t layer, const float* qkv, const float* cache, float* o) {
  const attune::Tensor sees{sees_.data(), sees_sizes_.data(), nullptr, ATT_BOOL,
                            static_cast<std::int32_t>(sees_sizes_.size())};
  attune::ForwardArgs args;
  args.shape = launch_;
  args.q = qkv;
  args.q_strides = {of(capacity_.rows * model_.qkv_columns()), of(model_.qkv_columns()),
                    of(model_.head_dim)};
  args.k = cache + cache_.keys(layer);
  args.v = cache + cache_.values(layer);
  args.k_strides = args.v_strides = {of(cache_.page()), of(cache_.columns), of(model_.head_dim)};
  args.o = o;
  args.cu_q = cu_q_.data();
  args.used_kv = used_kv_.data();
  args.page_table = page_table_.data();
  args.pages_per_sequence = of(capacity_.pages_per_sequence);
  args.page_size = of(cache_.page_size);
  args.pages = of(cache_.pages);
  args.tensor_views = &sees;
  args.tensor_view_count = 1;
  args.workspace = workspace_.data();
  args.workspace_bytes = workspace_.size();
  if (const attune::Status status = kernel_.forward(args); !status) fail(status.error());
}

}  // namespace serve
