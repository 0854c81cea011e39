#include "tuner/measure/backward_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

constexpr std::uint8_t kPoison = 0xff;  // NaN in every dtype
// P and dS that are subnormal in the dtype or in fp32, and what is made of them, err by their size.
constexpr double kUnderflow = 1e-34;

std::string wrong_element(const std::string& name, const std::vector<double>& values,
                          const ExpectedGradient& expected, std::size_t width) {
  if (values.size() != expected.values.size()) {
    return fmt::format("{}: {} elements instead of {}", name, values.size(),
                       expected.values.size());
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double limit = expected.limits[i] + kUnderflow;
    if (std::abs(values[i] - expected.values[i]) <= limit) continue;
    return fmt::format("{} row {}, column {}: {:.6g}, should be {:.6g} +- {:.2g}", name, i / width,
                       i % width, values[i], expected.values[i], limit);
  }
  return {};
}

}  // namespace

std::string wrong_gradient(const AttentionSpec& spec, const Gradients& gradients,
                           const BackwardOracle& oracle) {
  const auto qk = static_cast<std::size_t>(spec.head_dim_qk);
  const auto v = static_cast<std::size_t>(spec.head_dim_v);
  std::string wrong = wrong_element("dv", gradients.dv, oracle.dv, v);
  if (wrong.empty()) wrong = wrong_element("dk", gradients.dk, oracle.dk, qk);
  if (wrong.empty()) wrong = wrong_element("dq", gradients.dq, oracle.dq, qk);
  for (std::size_t slot = 0; slot < oracle.tensors.size() && wrong.empty(); ++slot) {
    wrong = wrong_element("the gradient of " + spec.environment.tensors[slot].name,
                          gradients.tensors[slot], oracle.tensors[slot], 1);
  }
  return wrong;
}

Result<BackwardProblem::Matrix> BackwardProblem::make_matrix(std::int64_t heads, std::int64_t seq,
                                                             int dim) {
  const std::int64_t bytes = shape_.batch * heads * seq * dim * element_bytes(spec_.dtype);
  ATT_TRY(DeviceBuffer buffer, DeviceBuffer::make(device_, static_cast<std::size_t>(bytes)));
  return Matrix{heads, seq, dim, contiguous_strides(spec_.layout, seq, heads, dim),
                std::move(buffer)};
}

// f(index on the host, index on the device).
template <typename F>
void BackwardProblem::for_each_element(const Matrix& matrix, const F& f) const {
  std::size_t at = 0;
  for (std::int64_t b = 0; b < shape_.batch; ++b) {
    for (std::int64_t h = 0; h < matrix.heads; ++h) {
      for (std::int64_t i = 0; i < matrix.seq; ++i) {
        const std::int64_t row =
            b * matrix.strides.batch + h * matrix.strides.head + i * matrix.strides.seq;
        for (int d = 0; d < matrix.dim; ++d) f(at++, static_cast<std::size_t>(row + d));
      }
    }
  }
}

Status BackwardProblem::upload(const Matrix& matrix, const std::vector<double>& values) {
  std::vector<double> arranged(values.size());
  for_each_element(matrix,
                   [&](std::size_t host, std::size_t device) { arranged[device] = values[host]; });
  return device_.copy_to_device(matrix.buffer.data(), encode(spec_.dtype, arranged).data(),
                                matrix.buffer.bytes());
}

Result<std::vector<double>> BackwardProblem::download(const Matrix& matrix) {
  std::vector<std::byte> raw(matrix.buffer.bytes());
  ATT_CHECK(device_.copy_to_host(raw.data(), matrix.buffer.data(), raw.size()));
  const std::vector<double> arranged = decode(spec_.dtype, raw);
  std::vector<double> values(arranged.size());
  for_each_element(matrix,
                   [&](std::size_t host, std::size_t device) { values[host] = arranged[device]; });
  return values;
}

Result<std::unique_ptr<BackwardProblem>> BackwardProblem::make(Device& device,
                                                               const AttentionSpec& spec,
                                                               const HostProblem& problem,
                                                               const LoadedKernel& forward,
                                                               std::uint64_t seed) {
  const ProblemShape& s = problem.shape;
  std::unique_ptr<BackwardProblem> made(new BackwardProblem(device, spec, s));
  ATT_TRY(made->forward_, DeviceProblem::upload(device, spec, problem));
  ATT_CHECK(made->forward_->launch(forward, nullptr));
  ATT_CHECK(device.synchronize());
  att::LaunchParams& p = made->params_;
  p = made->forward_->params();

  const auto rows = static_cast<std::size_t>(s.batch * s.heads * s.q_len);
  std::vector<float> lse(rows);
  ATT_CHECK(device.copy_to_host(lse.data(), p.lse, rows * sizeof(float)));
  OutputGradients& given = made->output_gradients_;
  given = random_output_gradients(spec, s, seed);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < rows; ++i) {
    if (lse[i] != -std::numeric_limits<float>::infinity()) continue;
    given.d_lse[i] = kNan;
    std::fill_n(given.d_o.begin() + static_cast<std::ptrdiff_t>(i) * spec.head_dim_v,
                spec.head_dim_v, kNan);
  }
  ATT_TRY(made->d_o_, made->make_matrix(s.heads, s.q_len, spec.head_dim_v));
  ATT_TRY(made->d_q_, made->make_matrix(s.heads, s.q_len, spec.head_dim_qk));
  ATT_TRY(made->d_k_, made->make_matrix(s.kv_heads, s.kv_len, spec.head_dim_qk));
  ATT_TRY(made->d_v_, made->make_matrix(s.kv_heads, s.kv_len, spec.head_dim_v));
  ATT_CHECK(made->upload(made->d_o_, given.d_o));
  const std::vector<float> d_lse(given.d_lse.begin(), given.d_lse.end());
  ATT_TRY(made->d_lse_, DeviceBuffer::make(device, rows * sizeof(float)));
  ATT_CHECK(device.copy_to_device(made->d_lse_.data(), d_lse.data(), rows * sizeof(float)));
  p.d_lse = static_cast<const float*>(made->d_lse_.data());
  const auto place = [](const Matrix& matrix, auto* pointer, att::Strides* strides) {
    *pointer = matrix.buffer.data();
    *strides = matrix.strides;
  };
  place(made->d_o_, &p.d_o, &p.d_o_stride);
  place(made->d_q_, &p.d_q, &p.d_q_stride);
  place(made->d_k_, &p.d_k, &p.d_k_stride);
  place(made->d_v_, &p.d_v, &p.d_v_stride);
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    DeviceBuffer& buffer = made->d_tensors_.emplace_back();
    if (!spec.environment.tensors[slot].grad) continue;
    ATT_TRY(buffer,
            DeviceBuffer::make(device, problem.tensors[slot].values.size() * sizeof(float)));
    p.d_tensors[slot] = static_cast<float*>(buffer.data());
  }
  return made;
}

Status BackwardProblem::launch(const LoadedKernel& backward, StreamHandle stream) {
  const std::size_t needed = backward.workspace_bytes(shape_);
  if (needed > workspace_.bytes()) {
    workspace_ = DeviceBuffer();
    ATT_TRY(workspace_, DeviceBuffer::make(device_, needed));
    ATT_CHECK(device_.fill(workspace_.data(), kPoison, workspace_.bytes()));
  }
  return backward.launch(params_, needed == 0 ? nullptr : workspace_.data(), stream);
}

Result<Gradients> BackwardProblem::run(const LoadedKernel& backward) {
  for (const DeviceBuffer* buffer : {&d_q_.buffer, &d_k_.buffer, &d_v_.buffer, &workspace_}) {
    if (buffer->bytes() > 0) ATT_CHECK(device_.fill(buffer->data(), kPoison, buffer->bytes()));
  }
  for (const DeviceBuffer& buffer : d_tensors_) {
    if (buffer.bytes() > 0) ATT_CHECK(device_.fill(buffer.data(), kPoison, buffer.bytes()));
  }
  ATT_CHECK(launch(backward, nullptr));
  ATT_CHECK(device_.synchronize());
  Gradients out;
  ATT_TRY(out.dq, download(d_q_));
  ATT_TRY(out.dk, download(d_k_));
  ATT_TRY(out.dv, download(d_v_));
  for (const DeviceBuffer& buffer : d_tensors_) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    if (!values.empty()) {
      ATT_CHECK(device_.copy_to_host(values.data(), buffer.data(), buffer.bytes()));
    }
    out.tensors.emplace_back(values.begin(), values.end());
  }
  return out;
}

}  // namespace attune
