#include "cuda_dense.hpp"

#include <algorithm>
#include <cmath>

#include "kernels.hpp"
#include "nvrtc.hpp"

namespace train {
namespace {

constexpr unsigned kThreads = CudaDevice::kThreads;
constexpr std::size_t kWarp = 32, kRowsPerBlock = kThreads / kWarp;
constexpr std::size_t kBlocksPerProcessor = 16;  // of 256 threads: twice what run at once
constexpr std::size_t kParts = 64;               // that a sum over rows is dealt to, at most
constexpr std::size_t kRowsPerPart = 64;         // at least

// How a sum over rows is dealt out.
struct Parts {
  explicit Parts(std::size_t rows)
      : share(std::max(quotient(rows, kParts), kRowsPerPart)), count(quotient(rows, share)) {}
  std::size_t share;  // rows of each
  std::size_t count;
};

}  // namespace

CudaDense::CudaDense(int ordinal, Products products)
    : device_(ordinal),
      product_((device_.load(compile_cuda(kKernels, device_.target())), device_), products) {}

std::string CudaDense::device() const {
  return device_.name() + ", products by " + product_.name();
}

template <typename... Arguments>
void CudaDense::for_each(std::string_view kernel, std::size_t count,
                         const Arguments&... arguments) {
  const std::size_t blocks =
      std::min(quotient(count, kThreads), kBlocksPerProcessor * device_.processors());
  device_.launch(kernel, {blocks}, kThreads, count, arguments...);
}

float* CudaDense::scratch(std::size_t count) {
  if (!scratch_ || scratch_->size() < count) {
    scratch_.reset();
    scratch_.emplace(device_, count);
  }
  return scratch_->data();
}

void CudaDense::add(std::size_t count, const float* x, float* y) { for_each("add", count, x, y); }

void CudaDense::to_bf16(std::size_t count, const float* x, std::uint16_t* y) {
  for_each("to_bf16", count, x, y);
}

void CudaDense::from_bf16(std::size_t count, const std::uint16_t* x, float* y) {
  for_each("from_bf16", count, x, y);
}

void CudaDense::rms_norm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                         float* inverse, float* y) {
  device_.launch("rms_norm", {quotient(rows, kRowsPerBlock)}, kThreads, rows, columns,
                 static_cast<float>(kNormEpsilon), x, gain, inverse, y);
}

void CudaDense::rms_norm_gradient(std::size_t rows, std::size_t columns, const float* x,
                                  const float* gain, const float* inverse, const float* d_y,
                                  float* d_x, float* d_gain) {
  device_.launch("rms_norm_gradient", {quotient(rows, kRowsPerBlock)}, kThreads, rows, columns, x,
                 gain, inverse, d_y, d_x);
  const Parts parts(rows);
  float* part = scratch(parts.count * columns);
  device_.launch("norm_gain_parts", {parts.count, quotient(columns, kWarp)}, kThreads, rows,
                 columns, parts.share, x, inverse, d_y, part);
  for_each("sum_parts", columns, parts.count, part, d_gain);
}

void CudaDense::gelu(std::size_t count, const float* x, float* y) { for_each("gelu", count, x, y); }

void CudaDense::gelu_gradient(std::size_t count, const float* x, const float* d_y, float* d_x) {
  for_each("gelu_gradient", count, x, d_y, d_x);
}

void CudaDense::embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens,
                      const float* table, float* y) {
  const std::size_t blocks =
      std::min(quotient(rows * columns, kThreads), kBlocksPerProcessor * device_.processors());
  device_.launch("embed", {blocks}, kThreads, rows, columns, tokens, table, y);
}

void CudaDense::embed_gradient(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                               const std::int32_t* tokens, const float* d_y, float* d_table) {
  const Parts parts(rows);
  float* part = scratch(parts.count * vocabulary * columns);
  const auto threads =
      static_cast<unsigned>(std::min<std::size_t>(quotient(columns, kWarp) * kWarp, kThreads));
  device_.launch("embed_parts", {vocabulary, parts.count}, threads, rows, columns, parts.share,
                 tokens, d_y, part);
  for_each("sum_parts", vocabulary * columns, parts.count, part, d_table);
}

double CudaDense::cross_entropy(std::size_t rows, std::size_t classes, const std::int32_t* targets,
                                float* logits) {
  if (!losses_ || losses_->size() < rows + 1) {
    losses_.reset();
    losses_.emplace(device_, rows + 1);
  }
  double* losses = losses_->data();
  double* mean = losses + rows;
  device_.launch("cross_entropy", {quotient(rows, kRowsPerBlock)}, kThreads, rows, classes, targets,
                 logits, losses);
  device_.launch("mean_loss", {}, kThreads, rows, losses, mean);
  double loss = 0;
  device_.read(&loss, mean, sizeof loss);
  return loss;
}

void CudaDense::adamw(const AdamwStep& step, std::size_t count, const float* gradient,
                      float* parameters, float* first_moment, float* second_moment) {
  const auto of = [](double value) { return static_cast<float>(value); };
  for_each("adamw", count, of(step.rate), of(1 - step.rate * step.decay), of(step.beta1),
           of(step.beta2), of(1 / (1 - std::pow(step.beta1, step.step))),
           of(1 / (1 - std::pow(step.beta2, step.step))), of(step.epsilon), gradient, parameters,
           first_moment, second_moment);
}

}  // namespace train
