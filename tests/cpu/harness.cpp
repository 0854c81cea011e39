#include "tests/cpu/harness.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "runtime/support/problem_layout.hpp"

namespace attune::testing_support {
namespace {

constexpr std::size_t kCanaryBytes = 256;
constexpr std::uint8_t kCanary = 0xC5;
constexpr std::uint8_t kPoison = 0xFF;  // NaN in every dtype

// Values are exactly representable, so a float holds them and narrowing is exact.
void write_element(DType dtype, double value, std::uint8_t* to) {
  const float narrow = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(to, &narrow, 4);
  } else if (dtype == DType::kBf16) {
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(narrow) >> 16);
    std::memcpy(to, &bits, 2);
  } else {
    const _Float16 half = static_cast<_Float16>(narrow);
    std::memcpy(to, &half, 2);
  }
}

double read_element(DType dtype, const std::uint8_t* from) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, from, 4);
    return value;
  }
  if (dtype == DType::kBf16) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, 2);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  _Float16 half{};
  std::memcpy(&half, from, 2);
  return static_cast<double>(half);
}

// Device memory between two canaries.
class Buffer {
 public:
  Buffer(Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {
    auto memory = device.allocate(bytes + 2 * kCanaryBytes);
    if (!memory.ok()) return;
    base_ = static_cast<std::uint8_t*>(*memory);
    (void)device.fill(base_, kCanary, bytes + 2 * kCanaryBytes);
    (void)device.fill(data(), kPoison, bytes);
  }
  ~Buffer() {
    if (base_ != nullptr) device_.free(base_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::uint8_t* data() const { return base_ + kCanaryBytes; }
  void write(const std::vector<std::uint8_t>& bytes) {
    (void)device_.copy_to_device(data(), bytes.data(), bytes.size());
  }
  std::vector<std::uint8_t> read() const {
    std::vector<std::uint8_t> bytes(bytes_);
    (void)device_.copy_to_host(bytes.data(), data(), bytes_);
    return bytes;
  }
  bool intact() const {
    std::vector<std::uint8_t> bytes(bytes_ + 2 * kCanaryBytes);
    (void)device_.copy_to_host(bytes.data(), base_, bytes.size());
    for (std::size_t i = 0; i < kCanaryBytes; ++i) {
      if (bytes[i] != kCanary || bytes[bytes.size() - 1 - i] != kCanary) return false;
    }
    return true;
  }

 private:
  Device& device_;
  std::size_t bytes_;
  std::uint8_t* base_ = nullptr;
};

// One of q, k, v, o: its strides in the spec's layout with padding between rows.
struct Operand {
  std::int64_t batch, heads, seq, dim;
  att::Strides strides;
  std::size_t elements;

  Operand(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t seq, std::int64_t dim,
          int padding)
      : batch(batch), heads(heads), seq(seq), dim(dim) {
    strides = contiguous_strides(layout, seq, heads, dim + padding);
    elements = static_cast<std::size_t>(batch * heads * seq * (dim + padding));
  }
  std::size_t offset(std::int64_t b, std::int64_t h, std::int64_t s) const {
    return static_cast<std::size_t>(b * strides.batch + h * strides.head + s * strides.seq);
  }
  // Calls visit(offset in memory, index in [b, h, s, dim]).
  template <typename Visit>
  void each(const Visit& visit) const {
    std::size_t index = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t s = 0; s < seq; ++s) {
          for (std::int64_t i = 0; i < dim; ++i) {
            visit(offset(b, h, s) + static_cast<std::size_t>(i), index++);
          }
        }
      }
    }
  }
};

std::vector<std::uint8_t> pack(DType dtype, const Operand& operand,
                               const std::vector<double>& values) {
  const auto size = static_cast<std::size_t>(element_bytes(dtype));
  // What lies between the rows is NaN: a kernel that reads it shows.
  std::vector<std::uint8_t> bytes(operand.elements * size, kPoison);
  operand.each([&](std::size_t at, std::size_t i) {
    write_element(dtype, values[i], bytes.data() + at * size);
  });
  return bytes;
}

std::vector<std::uint8_t> pack(expr::TensorType type, const expr::TensorValues& tensor) {
  std::vector<std::uint8_t> bytes;
  for (const double value : tensor.values) {
    std::uint8_t four[4];
    std::size_t size = 4;
    if (type == expr::TensorType::kInt32) {
      const auto narrow = static_cast<std::int32_t>(value);
      std::memcpy(four, &narrow, 4);
    } else if (type == expr::TensorType::kFloat32) {
      const auto narrow = static_cast<float>(value);
      std::memcpy(four, &narrow, 4);
    } else if (expr::is_half(type)) {
      size = 2;
      write_element(type == expr::TensorType::kFloat16 ? DType::kF16 : DType::kBf16, value, four);
    } else {
      four[0] = value != 0;
      size = 1;
    }
    bytes.insert(bytes.end(), four, four + size);
  }
  return bytes;
}

Error failed(std::string message) { return Error{.id = "test", .message = std::move(message)}; }

}  // namespace

Result<HostOutput> run_kernel(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                              const HostProblem& problem, const Placement& placement,
                              bool with_lse) {
  const ProblemShape& shape = problem.shape;
  const auto operand = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim) {
    return Operand(spec.layout, shape.batch, heads, seq, dim, placement.padding);
  };
  const Operand q = operand(shape.heads, shape.q_len, spec.head_dim_qk);
  const Operand k = operand(shape.kv_heads, shape.kv_len, spec.head_dim_qk);
  const Operand v = operand(shape.kv_heads, shape.kv_len, spec.head_dim_v);
  const Operand o = operand(shape.heads, shape.q_len, spec.head_dim_v);
  const auto size = static_cast<std::size_t>(element_bytes(spec.dtype));
  const auto rows = static_cast<std::size_t>(shape.batch * shape.heads * shape.q_len);

  std::vector<std::unique_ptr<Buffer>> buffers;
  const auto buffer = [&](std::size_t bytes) -> Buffer& {
    return *buffers.emplace_back(std::make_unique<Buffer>(device, bytes));
  };
  const auto filled = [&](const std::vector<std::uint8_t>& bytes) -> Buffer& {
    Buffer& made = buffer(bytes.size());
    made.write(bytes);
    return made;
  };
  att::LaunchParams params = params_of(spec, shape);
  params.q = filled(pack(spec.dtype, q, problem.q)).data();
  params.k = filled(pack(spec.dtype, k, problem.k)).data();
  if (!spec.v_in_k) params.v = filled(pack(spec.dtype, v, problem.v)).data();
  const Buffer& o_buffer = buffer(o.elements * size);
  params.o = o_buffer.data();
  const Buffer& lse_buffer = buffer(rows * 4);
  params.lse = with_lse ? reinterpret_cast<float*>(lse_buffer.data()) : nullptr;
  params.q_stride = q.strides;
  params.k_stride = k.strides;
  params.v_stride = v.strides;
  take_v_from_k(spec, &params);
  params.o_stride = o.strides;
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  set_dropout(dropout_drop_below(problem.dropout), problem.dropout_seed, problem.dropout_offset,
              &params);
  if (spec.seed_on_device) {
    std::vector<std::uint8_t> state(2 * sizeof(std::uint64_t));
    std::memcpy(state.data(), &problem.dropout_seed, sizeof(std::uint64_t));
    std::memcpy(&state[sizeof(std::uint64_t)], &problem.dropout_offset, sizeof(std::uint64_t));
    set_dropout_state(filled(state).data(), &params);
  }
  for (std::size_t i = 0; i < problem.scalars.size(); ++i) {
    if (spec.environment.scalars[i].type == expr::Type::kInt32) {
      params.scalars[i].as_int = static_cast<int>(problem.scalars[i]);
    } else {
      params.scalars[i].as_float = static_cast<float>(problem.scalars[i]);
    }
  }
  for (std::size_t i = 0; i < problem.tensors.size(); ++i) {
    params.tensors[i].data =
        filled(pack(spec.environment.tensors[i].type, problem.tensors[i])).data();
  }
  const std::size_t workspace = kernel.workspace_bytes(shape);
  void* workspace_data = workspace == 0 ? nullptr : buffer(workspace).data();
  ATT_CHECK(kernel.launch(params, workspace_data, nullptr));
  ATT_CHECK(device.synchronize());

  for (const auto& checked : buffers) {
    if (!checked->intact()) return failed("a canary beside a buffer was overwritten");
  }
  HostOutput output;
  output.o.resize(static_cast<std::size_t>(o.batch * o.heads * o.seq * o.dim));
  const std::vector<std::uint8_t> o_bytes = o_buffer.read();
  std::vector<bool> written(o.elements, false);
  o.each([&](std::size_t at, std::size_t i) {
    output.o[i] = read_element(spec.dtype, o_bytes.data() + at * size);
    written[at] = true;
  });
  for (std::size_t at = 0; at < o.elements; ++at) {
    for (std::size_t byte = 0; !written[at] && byte < size; ++byte) {
      if (o_bytes[at * size + byte] != kPoison) return failed("the kernel wrote between rows of o");
    }
  }
  if (with_lse) {
    const std::vector<std::uint8_t> lse_bytes = lse_buffer.read();
    for (std::size_t row = 0; row < rows; ++row) {
      output.lse.push_back(read_element(DType::kF32, lse_bytes.data() + row * 4));
    }
  }
  return output;
}

}  // namespace attune::testing_support
