#include "runtime/reference/device_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/reference/encoding.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

constexpr std::size_t kCanaryBytes = 256;
constexpr std::uint8_t kCanary = 0xA5;
// All ones is a NaN in every float format that outputs have.
constexpr std::uint8_t kPoison = 0xFF;

// `values` is [batch, heads, seq, dim]; the result the same in the spec's layout and dtype.
std::vector<std::uint8_t> pack(const AttentionSpec& spec, const std::vector<double>& values,
                               std::int64_t batch, std::int64_t heads, std::int64_t seq,
                               std::int64_t dim) {
  const auto bytes = static_cast<std::size_t>(element_bytes(spec.dtype));
  const att::Strides strides = contiguous_strides(spec.layout, seq, heads, dim);
  std::vector<std::uint8_t> packed(values.size() * bytes);
  const double* from = values.data();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t s = 0; s < seq; ++s, from += dim) {
        const std::int64_t at = b * strides.batch + h * strides.head + s * strides.seq;
        encode(spec.dtype, from, static_cast<std::size_t>(dim),
               packed.data() + static_cast<std::size_t>(at) * bytes);
      }
    }
  }
  return packed;
}

std::vector<std::uint8_t> pack(expr::TensorType type, const std::vector<double>& values) {
  const auto bytes = static_cast<std::size_t>(tensor_element_bytes(type));
  std::vector<std::uint8_t> packed(values.size() * bytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint8_t* to = packed.data() + i * bytes;
    if (type == expr::TensorType::kBool) {
      *to = values[i] != 0;
    } else {
      const auto bits = type == expr::TensorType::kInt32
                            ? static_cast<std::uint32_t>(static_cast<std::int32_t>(values[i]))
                            : std::bit_cast<std::uint32_t>(static_cast<float>(values[i]));
      std::memcpy(to, &bits, sizeof bits);
    }
  }
  return packed;
}

}  // namespace

DeviceProblem::DeviceProblem(Device& device, const AttentionSpec& spec, const ProblemShape& shape)
    : device_(device), shape_(shape), dtype_(spec.dtype), head_dim_v_(spec.head_dim_v) {}

DeviceProblem::~DeviceProblem() {
  for (const Buffer& buffer : buffers_) device_.free(buffer.data);
  if (workspace_.data != nullptr) device_.free(workspace_.data);
}

Result<void*> DeviceProblem::add(std::size_t bytes, const void* from) {
  ATT_TRY(void* data, device_.allocate(bytes + kCanaryBytes));
  buffers_.push_back({data, bytes});
  ATT_CHECK(device_.fill(static_cast<std::uint8_t*>(data) + bytes, kCanary, kCanaryBytes));
  ATT_CHECK(from != nullptr ? device_.copy_to_device(data, from, bytes)
                            : device_.fill(data, kPoison, bytes));
  return data;
}

Result<std::unique_ptr<DeviceProblem>> DeviceProblem::upload(Device& device,
                                                             const AttentionSpec& spec,
                                                             const HostProblem& problem) {
  const auto& [batch, heads, kv_heads, q_len, kv_len] = problem.shape;
  std::unique_ptr<DeviceProblem> made(new DeviceProblem(device, spec, problem.shape));
  const int qk = spec.head_dim_qk, v = spec.head_dim_v;
  att::ForwardParams& params = made->params_;
  const auto input = [&](const std::vector<double>& values, std::int64_t n_heads, std::int64_t seq,
                         int dim) {
    const auto packed = pack(spec, values, batch, n_heads, seq, dim);
    return made->add(packed.size(), packed.data());
  };
  ATT_TRY(params.q, input(problem.q, heads, q_len, qk));
  ATT_TRY(params.k, input(problem.k, kv_heads, kv_len, qk));
  ATT_TRY(params.v, input(problem.v, kv_heads, kv_len, v));
  const auto rows = static_cast<std::size_t>(batch * heads * q_len);
  made->o_buffer_ = made->buffers_.size();
  ATT_TRY(params.o,
          made->add(rows * static_cast<std::size_t>(v * element_bytes(spec.dtype)), nullptr));
  made->lse_buffer_ = made->buffers_.size();
  ATT_TRY(void* lse, made->add(rows * sizeof(float), nullptr));
  params.lse = static_cast<float*>(lse);
  params.q_stride = contiguous_strides(spec.layout, q_len, heads, qk);
  params.k_stride = contiguous_strides(spec.layout, kv_len, kv_heads, qk);
  params.v_stride = contiguous_strides(spec.layout, kv_len, kv_heads, v);
  params.o_stride = contiguous_strides(spec.layout, q_len, heads, v);
  params.batch = static_cast<int>(batch);
  params.heads = static_cast<int>(heads);
  params.kv_heads = static_cast<int>(kv_heads);
  params.q_len = static_cast<int>(q_len);
  params.kv_len = static_cast<int>(kv_len);
  params.softmax_scale = static_cast<float>(
      spec.softmax_scale.at_launch ? problem.softmax_scale : spec.softmax_scale.value);
  params.dropout_drop_below =
      dropout_drop_below(spec.dropout.at_launch ? problem.dropout : spec.dropout.value);
  params.dropout_keep_scale = 256.0f / static_cast<float>(256 - params.dropout_drop_below);
  params.dropout_seed = problem.dropout_seed;
  params.dropout_offset = problem.dropout_offset;
  const auto& scalars = spec.environment.scalars;
  for (std::size_t slot = 0; slot < scalars.size(); ++slot) {
    if (scalars[slot].type == expr::Type::kFloat32) {
      params.scalars[slot].as_float = static_cast<float>(problem.scalars[slot]);
    } else {
      params.scalars[slot].as_int = static_cast<int>(problem.scalars[slot]);
    }
  }
  for (std::size_t slot = 0; slot < problem.tensors.size(); ++slot) {
    const expr::TensorValues& tensor = problem.tensors[slot];
    const auto packed = pack(spec.environment.tensors[slot].type, tensor.values);
    att::TensorArg& arg = params.tensors[slot];
    ATT_TRY(arg.data, made->add(packed.size(), packed.data()));
    std::fill(std::begin(arg.size), std::end(arg.size), 1);
    for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
      arg.size[i] = static_cast<int>(tensor.sizes[i]);
    }
  }
  return made;
}

Status DeviceProblem::prepare(const LoadedKernel& kernel) {
  const std::size_t bytes = kernel.workspace_bytes(shape_);
  if (bytes <= workspace_.bytes) return ok_status();
  if (workspace_.data != nullptr) device_.free(workspace_.data);
  workspace_ = {};
  ATT_TRY(workspace_.data, device_.allocate(bytes + kCanaryBytes));
  workspace_.bytes = bytes;
  return device_.fill(static_cast<std::uint8_t*>(workspace_.data) + bytes, kCanary, kCanaryBytes);
}

Status DeviceProblem::launch(const LoadedKernel& kernel, StreamHandle stream) {
  ATT_CHECK(prepare(kernel));
  return kernel.launch(params_, workspace_.data, stream);
}

Status DeviceProblem::poison() {
  for (const std::size_t index : {o_buffer_, lse_buffer_}) {
    ATT_CHECK(device_.fill(buffers_[index].data, kPoison, buffers_[index].bytes));
  }
  return ok_status();
}

Status DeviceProblem::check_canaries() {
  std::vector<Buffer> all = buffers_;
  if (workspace_.data != nullptr) all.push_back(workspace_);
  std::vector<std::uint8_t> canary(kCanaryBytes);
  for (const Buffer& buffer : all) {
    ATT_CHECK(device_.copy_to_host(canary.data(),
                                   static_cast<const std::uint8_t*>(buffer.data) + buffer.bytes,
                                   canary.size()));
    const auto hit =
        std::ranges::find_if(canary, [](std::uint8_t byte) { return byte != kCanary; });
    if (hit != canary.end()) {
      return Error{.kind = ErrorKind::kFailed,
                   .id = "canary",
                   .message = fmt::format("the kernel wrote {} bytes behind a buffer of {}",
                                          hit - canary.begin() + 1, buffer.bytes)};
    }
  }
  return ok_status();
}

Result<HostOutput> DeviceProblem::read(const std::vector<Row>& rows) {
  ATT_CHECK(check_canaries());
  std::vector<std::uint8_t> o(buffers_[o_buffer_].bytes);
  std::vector<float> lse(buffers_[lse_buffer_].bytes / sizeof(float));
  ATT_CHECK(device_.copy_to_host(o.data(), buffers_[o_buffer_].data, o.size()));
  ATT_CHECK(
      device_.copy_to_host(lse.data(), buffers_[lse_buffer_].data, lse.size() * sizeof(float)));
  HostOutput output;
  const auto dim = static_cast<std::size_t>(head_dim_v_);
  const auto bytes = static_cast<std::size_t>(element_bytes(dtype_));
  output.o.resize(rows.size() * dim);
  output.lse.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const std::int64_t at = row.b * params_.o_stride.batch + row.h * params_.o_stride.head +
                            row.q_idx * params_.o_stride.seq;
    decode(dtype_, o.data() + static_cast<std::size_t>(at) * bytes, dim, output.o.data() + i * dim);
    const std::int64_t lse_at = (row.b * shape_.heads + row.h) * shape_.q_len + row.q_idx;
    output.lse.push_back(lse[static_cast<std::size_t>(lse_at)]);
  }
  return output;
}

}  // namespace attune
