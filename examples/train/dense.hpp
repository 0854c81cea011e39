// The seam between the model and what it runs on: every operation of the model but attention.
// Another device is another implementation of this interface; the model, the optimiser's schedule
// and attention do not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "shared.hpp"
#include "workers.hpp"

namespace train {

constexpr double kNormEpsilon = 1e-6;  // under the root of rms_norm

// c = a b: m x n out of m x k and k x n, all row-major. A transposed operand lies as k x m or n x
// k.
struct Product {
  std::size_t m, n, k;
  bool a_transposed = false;
  bool b_transposed = false;
};

// One step of AdamW (Loshchilov and Hutter 2019).
struct AdamwStep {
  double rate;          // the learning rate of this step
  double decay;         // what a parameter loses, times the rate
  double beta1, beta2;  // of the first and the second moment
  double epsilon;
  int step;  // from 1
};

// Matrices are row-major and contiguous, pointers of memory(). What is written is written whole
// unless a comment says that it is added to. Operations may be enqueued, in order; reading memory()
// and cross_entropy() wait for them. One thread at a time.
template <typename T>
class Dense {
 public:
  virtual ~Dense() = default;
  // What it runs on, in words.
  virtual std::string device() const = 0;
  virtual Memory& memory() = 0;
  // A CUstream that operations are enqueued on, for others that work on memory(); null where they
  // are done when they return.
  virtual void* stream() = 0;

  virtual void multiply(const Product& product, const T* a, const T* b, T* c) = 0;
  // y += x
  virtual void add(std::size_t count, const T* x, T* y) = 0;
  // To bf16, rounded to the nearest, ties to even; and back.
  virtual void to_bf16(std::size_t count, const T* x, std::uint16_t* y) = 0;
  virtual void from_bf16(std::size_t count, const std::uint16_t* x, T* y) = 0;

  // y[i, j] = x[i, j] * inverse[i] * gain[j], where inverse[i] is 1 over the root of the row's mean
  // square (Zhang and Sennrich 2019).
  virtual void rms_norm(std::size_t rows, std::size_t columns, const T* x, const T* gain,
                        T* inverse, T* y) = 0;
  // d_x is added to.
  virtual void rms_norm_gradient(std::size_t rows, std::size_t columns, const T* x, const T* gain,
                                 const T* inverse, const T* d_y, T* d_x, T* d_gain) = 0;

  // y = x * (1 + erf(x / sqrt(2))) / 2
  virtual void gelu(std::size_t count, const T* x, T* y) = 0;
  virtual void gelu_gradient(std::size_t count, const T* x, const T* d_y, T* d_x) = 0;

  // y[i] = table[tokens[i]], rows of `columns`.
  virtual void embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens,
                     const T* table, T* y) = 0;
  virtual void embed_gradient(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                              const std::int32_t* tokens, const T* d_y, T* d_table) = 0;

  // The mean over the rows of -log softmax(logits)[target], in nats; `logits` become its gradient.
  virtual double cross_entropy(std::size_t rows, std::size_t classes, const std::int32_t* targets,
                               T* logits) = 0;

  virtual void adamw(const AdamwStep& step, std::size_t count, const T* gradient, T* parameters,
                     T* first_moment, T* second_moment) = 0;
};

// Whose matrix products a GPU takes.
enum class Products { kFastest, kCublas, kOwn };

// For a device as attune::RuntimeOptions has it. `workers` are the CPU's and must outlive it.
// Throws Error where there is no such device.
std::unique_ptr<Dense<float>> make_dense(const std::string& device, Workers& workers,
                                         Products products);

}  // namespace train
