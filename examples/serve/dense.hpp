// The seam between the model and what it runs on: every operation of the model but
// attention and what Attune does in front of it.
// Another device is another implementation of this interface, and of its Memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared.hpp"

namespace serve {

// The token that a row of logits prefers, and its logit.
struct Choice {
  std::int32_t token;
  float logit;
};

// Matrices are row-major, pointers of memory(), contiguous where no stride is named. Operations may
// be enqueued, in order; reading memory() and choose() wait for them. One thread at a time.
class Dense {
 public:
  virtual ~Dense() = default;
  virtual Memory& memory() = 0;

  // y[i] = table[tokens[i]], rows of `columns`.
  virtual void embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens,
                     const float* table, float* y) = 0;
  // y = x over the root of its row's mean square.
  virtual void rms_norm(std::size_t rows, std::size_t columns, const float* x, float* y) = 0;
  // y = x w, or y += x w with `adds`: x is rows x in, w is in x out.
  virtual void multiply(std::size_t rows, std::size_t in, std::size_t out, const float* x,
                        const float* w, float* y, bool adds = false) = 0;
  // x = x * (1 + erf(x / sqrt(2))) / 2
  virtual void gelu(std::size_t count, float* x) = 0;
  // x + from becomes x + to, `count` elements.
  virtual void move(std::size_t count, std::size_t from, std::size_t to, float* x) = 0;
  // The largest logit of each row; the first, where some are the same.
  virtual std::vector<Choice> choose(std::size_t rows, std::size_t columns,
                                     const float* logits) = 0;
};

// For a device as attune::RuntimeOptions has it. Throws Error where there is no implementation.
std::unique_ptr<Dense> make_dense(const std::string& device);

}  // namespace serve
