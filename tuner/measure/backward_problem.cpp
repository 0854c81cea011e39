#include "tuner/measure/backward_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/judge.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tuner/measure/timing_pattern.hpp"

namespace attune {
namespace {

// Added to a seed, so that dO does not have the very numbers of Q.
constexpr std::uint64_t kOfGradients = 1;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The place of a row of dK and dV: [b, h_kv, kv_len], packed [h_kv, kv_len].
std::size_t row_of_keys(const HostProblem& problem, const KeyRow& row) {
  const ProblemShape& s = problem.shape;
  const HostSpan span = span_of(problem, row.b);
  return static_cast<std::size_t>((span.slice * s.kv_heads + row.h_kv) * s.kv_len + span.kv_first +
                                  row.kv_idx);
}

// What is wrong with the rows of a gradient that nobody has; `owned`: the others.
std::string written_beside(const std::string& name, const std::vector<double>& values,
                           std::size_t width, const std::vector<std::size_t>& owned) {
  std::vector<bool> is_owned(values.size() / width, false);
  for (const std::size_t row : owned) is_owned[row] = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_owned[i / width] && !std::isnan(values[i])) {
      return fmt::format("{} was written at row {}, which is no sequence's", name, i / width);
    }
  }
  return "";
}

}  // namespace

std::string wrong_gradient(const Gradients& gradients, const BackwardOracle& oracle) {
  std::string wrong = judge(oracle.dv, gradients.dv).wrong;
  if (wrong.empty()) wrong = judge(oracle.dk, gradients.dk).wrong;
  if (wrong.empty()) wrong = judge(oracle.dq, gradients.dq).wrong;
  for (std::size_t slot = 0; slot < oracle.tensors.size() && wrong.empty(); ++slot) {
    wrong = judge(oracle.tensors[slot], gradients.tensors[slot]).wrong;
  }
  if (wrong.empty() && !gradients.sink.empty() && !oracle.sink.values.empty()) {
    wrong = judge(oracle.sink, gradients.sink).wrong;
  }
  return wrong;
}

std::string wrong_gradient(const Gradients& all, const BackwardOracle& oracle,
                           const BackwardSample& sample, const AttentionSpec& spec,
                           const HostProblem& problem) {
  const auto qk = static_cast<std::size_t>(spec.head_dim_qk);
  const auto v = static_cast<std::size_t>(spec.head_dim_v);
  if (!problem.sequences.empty()) {
    const BackwardSample every = whole_sample(problem);
    std::vector<std::size_t> queries, keys;
    for (const Row& row : every.queries) queries.push_back(row_of_outputs(problem, row));
    for (const KeyRow& row : every.keys) keys.push_back(row_of_keys(problem, row));
    for (const std::string& wrong :
         {written_beside("dq", all.dq, qk, queries), written_beside("dk", all.dk, qk, keys),
          written_beside("dv", all.dv, v, keys)}) {
      if (!wrong.empty()) return wrong;
    }
  }
  Gradients rows;
  const auto take = [](const std::vector<double>& from, std::size_t row, std::size_t width,
                       std::vector<double>& to) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(row * width);
    to.insert(to.end(), first, first + static_cast<std::ptrdiff_t>(width));
  };
  for (const Row& row : sample.queries) take(all.dq, row_of_outputs(problem, row), qk, rows.dq);
  for (const KeyRow& row : sample.keys) {
    take(all.dk, row_of_keys(problem, row), qk, rows.dk);
    take(all.dv, row_of_keys(problem, row), v, rows.dv);
  }
  rows.tensors = all.tensors;
  rows.sink = all.sink;
  return wrong_gradient(rows, oracle);
}

Result<BackwardProblem::Matrix> BackwardProblem::make_matrix(std::int64_t heads, std::int64_t seq,
                                                             int dim) {
  const Arrangement arrangement = {slice_count(spec_, shape_), heads, seq, dim,
                                   contiguous_strides(spec_.layout, seq, heads, dim)};
  const std::int64_t bytes = arrangement.elements() * element_bytes(spec_.dtype);
  ATT_TRY(OutputBuffer buffer, OutputBuffer::make(device_, static_cast<std::size_t>(bytes)));
  return Matrix{arrangement, std::move(buffer)};
}

Status BackwardProblem::upload(const Matrix& matrix, const std::vector<double>& values) {
  const auto bytes = encode(spec_.dtype, matrix.arrangement.to_device(values));
  return device_.copy_to_device(matrix.buffer.data(), bytes.data(), bytes.size());
}

Result<std::vector<double>> BackwardProblem::download(const Matrix& matrix) {
  std::vector<std::byte> raw(matrix.buffer.bytes());
  ATT_CHECK(device_.copy_to_host(raw.data(), matrix.buffer.data(), raw.size()));
  return matrix.arrangement.to_host(decode(spec_.dtype, raw));
}

Result<std::vector<double>> BackwardProblem::download_floats(const OutputBuffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  if (!values.empty()) {
    ATT_CHECK(device_.copy_to_host(values.data(), buffer.data(), buffer.bytes()));
  }
  return std::vector<double>(values.begin(), values.end());
}

// The forward pass' results, and the parameters that both passes share.
Status BackwardProblem::run_forward(std::unique_ptr<DeviceProblem> problem,
                                    const LoadedKernel& forward) {
  forward_ = std::move(problem);
  ATT_CHECK(forward_->poison());
  ATT_CHECK(forward_->launch(forward, nullptr));
  ATT_CHECK(device_.synchronize());
  params_ = forward_->params();
  return ok_status();
}

Status BackwardProblem::make_gradients() {
  const ProblemShape& s = shape_;
  ATT_TRY(d_o_, make_matrix(s.heads, s.q_len, spec_.head_dim_v));
  ATT_TRY(d_q_, make_matrix(s.heads, s.q_len, spec_.head_dim_qk));
  ATT_TRY(d_k_, make_matrix(s.kv_heads, s.kv_len, spec_.head_dim_qk));
  ATT_TRY(d_v_, make_matrix(s.kv_heads, s.kv_len, spec_.head_dim_v));
  const auto place = [](const Matrix& matrix, auto* pointer, att::Strides* strides) {
    *pointer = matrix.buffer.data();
    *strides = matrix.arrangement.strides;
  };
  place(d_o_, &params_.d_o, &params_.d_o_stride);
  place(d_q_, &params_.d_q, &params_.d_q_stride);
  place(d_k_, &params_.d_k, &params_.d_k_stride);
  place(d_v_, &params_.d_v, &params_.d_v_stride);
  for (std::size_t slot = 0; slot < spec_.environment.tensors.size(); ++slot) {
    const expr::TensorDecl& tensor = spec_.environment.tensors[slot];
    OutputBuffer& buffer = d_tensors_.emplace_back();
    if (!tensor.grad) continue;
    const auto count = static_cast<std::size_t>(element_count(tensor_sizes(tensor, s)));
    ATT_TRY(buffer, OutputBuffer::make(device_, count * sizeof(float)));
    params_.d_tensors[slot] = static_cast<float*>(buffer.data());
  }
  if (spec_.sink != nullptr) {
    const auto count = static_cast<std::size_t>(s.batch * s.heads);
    ATT_TRY(d_sink_, OutputBuffer::make(device_, count * sizeof(float)));
    params_.d_sink = static_cast<float*>(d_sink_.data());
  }
  return ok_status();
}

Status BackwardProblem::draw_output_gradients(std::uint64_t seed) {
  const std::vector<Row> own = all_rows(places_);
  const std::size_t rows =
      static_cast<std::size_t>(slice_count(spec_, shape_) * shape_.heads * shape_.q_len);
  std::vector<float> lse(rows);
  ATT_CHECK(device_.copy_to_host(lse.data(), params_.lse, rows * sizeof(float)));
  OutputGradients& given = output_gradients_;
  given = random_output_gradients(spec_, shape_, seed + kOfGradients);
  std::vector<bool> is_live(rows, false);
  for (const Row& row : own) {
    const std::size_t at = row_of_outputs(places_, row);
    is_live[at] = lse[at] != -std::numeric_limits<float>::infinity();
  }
  for (std::size_t i = 0; i < rows; ++i) {
    if (is_live[i]) continue;
    given.d_lse[i] = kNan;
    std::fill_n(given.d_o.begin() + static_cast<std::ptrdiff_t>(i) * spec_.head_dim_v,
                spec_.head_dim_v, kNan);
  }
  ATT_CHECK(upload(d_o_, given.d_o));
  const std::vector<float> d_lse(given.d_lse.begin(), given.d_lse.end());
  ATT_TRY(d_lse_, DeviceBuffer::make(device_, rows * sizeof(float)));
  ATT_CHECK(device_.copy_to_device(d_lse_.data(), d_lse.data(), rows * sizeof(float)));
  params_.d_lse = static_cast<const float*>(d_lse_.data());
  return ok_status();
}

Result<std::unique_ptr<BackwardProblem>> BackwardProblem::make(Device& device,
                                                               const AttentionSpec& spec,
                                                               const HostProblem& problem,
                                                               const LoadedKernel& forward,
                                                               std::uint64_t seed) {
  std::unique_ptr<BackwardProblem> made(new BackwardProblem(device, spec, problem.shape));
  made->places_.shape = problem.shape;
  made->places_.sequences = problem.sequences;
  ATT_TRY(auto on_device, DeviceProblem::upload(device, spec, problem));
  ATT_CHECK(made->run_forward(std::move(on_device), forward));
  ATT_CHECK(made->make_gradients());
  ATT_CHECK(made->draw_output_gradients(seed));
  return made;
}

Result<std::unique_ptr<BackwardProblem>> BackwardProblem::for_timing(Device& device,
                                                                     const AttentionSpec& spec,
                                                                     const ProblemShape& shape,
                                                                     const LoadedKernel& forward,
                                                                     std::uint64_t seed) {
  std::unique_ptr<BackwardProblem> made(new BackwardProblem(device, spec, shape));
  ATT_TRY(auto on_device, DeviceProblem::for_timing(device, spec, shape, seed));
  ATT_CHECK(made->run_forward(std::move(on_device), forward));
  ATT_CHECK(made->make_gradients());
  ATT_CHECK(repeat_pattern(device, made->d_o_.buffer.data(), made->d_o_.buffer.bytes(),
                           timing_pattern(spec.dtype, seed + kOfGradients)));
  return made;
}

Result<std::unique_ptr<BackwardProblem>> BackwardProblem::of_launch(Device& device,
                                                                    const AttentionSpec& spec,
                                                                    const GivenLaunch& launch,
                                                                    const LoadedKernel& forward) {
  std::unique_ptr<BackwardProblem> made(new BackwardProblem(device, spec, launch.facts().shape));
  ATT_TRY(auto on_device, DeviceProblem::of_launch(device, spec, launch));
  ATT_CHECK(made->run_forward(std::move(on_device), forward));
  ATT_CHECK(made->make_gradients());
  const auto d_o = launch.bytes(LaunchPart::kDO);
  ATT_CHECK(device.copy_to_device(made->d_o_.buffer.data(), d_o.data(), d_o.size()));
  if (const auto d_lse = launch.bytes(LaunchPart::kDLse); !d_lse.empty()) {
    ATT_TRY(made->d_lse_, DeviceBuffer::make(device, d_lse.size()));
    ATT_CHECK(device.copy_to_device(made->d_lse_.data(), d_lse.data(), d_lse.size()));
    made->params_.d_lse = static_cast<const float*>(made->d_lse_.data());
  }
  return made;
}

Result<HostOutput> BackwardProblem::forward_output() {
  const std::vector<Row> own = all_rows(places_);
  ATT_TRY(const HostOutput rows, forward_->download(own));
  const auto v = static_cast<std::size_t>(spec_.head_dim_v);
  HostOutput all;
  all.lse.assign(output_gradients_.d_lse.size(), kNan);
  all.o.assign(all.lse.size() * v, kNan);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t at = row_of_outputs(places_, own[i]);
    all.lse[at] = rows.lse[i];
    std::copy_n(&rows.o[i * v], v, &all.o[at * v]);
  }
  return all;
}

Status BackwardProblem::poison() {
  for (Matrix* matrix : {&d_q_, &d_k_, &d_v_}) ATT_CHECK(matrix->buffer.poison());
  for (OutputBuffer& buffer : d_tensors_) ATT_CHECK(buffer.poison());
  ATT_CHECK(d_sink_.poison());
  return workspace_.poison();
}

Status BackwardProblem::check_canaries() {
  ATT_CHECK(device_.synchronize());
  ATT_CHECK(d_q_.buffer.check_canary("dq"));
  ATT_CHECK(d_k_.buffer.check_canary("dk"));
  ATT_CHECK(d_v_.buffer.check_canary("dv"));
  for (std::size_t slot = 0; slot < d_tensors_.size(); ++slot) {
    if (d_tensors_[slot].bytes() == 0) continue;
    const std::string name = "the gradient of " + spec_.environment.tensors[slot].name;
    ATT_CHECK(d_tensors_[slot].check_canary(name));
  }
  if (d_sink_.bytes() > 0) ATT_CHECK(d_sink_.check_canary("the gradient of the sink"));
  return ok_status();
}

Result<Gradients> BackwardProblem::download() {
  ATT_CHECK(check_canaries());
  Gradients out;
  ATT_TRY(out.dq, download(d_q_));
  ATT_TRY(out.dk, download(d_k_));
  ATT_TRY(out.dv, download(d_v_));
  for (const OutputBuffer& buffer : d_tensors_) {
    ATT_TRY(out.tensors.emplace_back(), download_floats(buffer));
  }
  ATT_TRY(out.sink, download_floats(d_sink_));
  return out;
}

Result<Gradients> BackwardProblem::run(const LoadedKernel& backward) {
  ATT_CHECK(poison());
  ATT_CHECK(launch(backward, nullptr));
  return download();
}

}  // namespace attune
