// The matrices of a launch, each by strides of its own.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "generator/spec/spec.hpp"
#include "runtime/device/device.hpp"

namespace attune::verification {

// Copies of the matrices that a launch has contiguous, in whatever order of batch, rows and heads,
// with NaN between their rows, here and there backwards, or once for all batches or heads where
// these are alike. Keys in pages stay where they are, and so do vectors. Device and spec must
// outlive it.
class Scattered {
 public:
  static Result<Scattered> make(Device& device, const AttentionSpec& spec,
                                const att::LaunchParams& contiguous, Pass pass,
                                std::mt19937_64& random);
  ~Scattered();
  Scattered(Scattered&& other) noexcept;
  Scattered(const Scattered&) = delete;
  Scattered& operator=(const Scattered&) = delete;

  // Of the copies.
  const att::LaunchParams& params() const { return params_; }
  // After a launch: waits, and brings what was written to where the contiguous launch has it. Fails
  // where something else was written.
  Status gather();
  // The strides, for a message.
  std::string text() const;

 private:
  struct Matrix;

  explicit Scattered(Device& device);
  Status scatter(Matrix matrix, std::mt19937_64& random);

  Device* device_;
  att::LaunchParams params_{};
  std::vector<Matrix> matrices_;
};

}  // namespace attune::verification
