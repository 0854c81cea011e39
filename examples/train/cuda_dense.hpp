// The model's operations on a GPU.
#pragma once

#include <optional>
#include <string>

#include "cuda_device.hpp"
#include "cuda_product.hpp"
#include "dense.hpp"

namespace train {

// In fp32, by kernels.cu, which NVRTC compiles for the device. The same bits at every call.
class CudaDense : public Dense<float> {
 public:
  // Throws Error: no driver, no such GPU, no NVRTC, no memory.
  CudaDense(int ordinal, Products products);

  std::string device() const override;
  Memory& memory() override { return device_; }
  void* stream() override { return device_.stream(); }
  void multiply(const Product& product, const float* a, const float* b, float* c) override {
    product_.run(product, a, b, c);
  }
  void add(std::size_t count, const float* x, float* y) override;
  void to_bf16(std::size_t count, const float* x, std::uint16_t* y) override;
  void from_bf16(std::size_t count, const std::uint16_t* x, float* y) override;
  void rms_norm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                float* inverse, float* y) override;
  void rms_norm_gradient(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                         const float* inverse, const float* d_y, float* d_x,
                         float* d_gain) override;
  void gelu(std::size_t count, const float* x, float* y) override;
  void gelu_gradient(std::size_t count, const float* x, const float* d_y, float* d_x) override;
  void embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens, const float* table,
             float* y) override;
  void embed_gradient(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                      const std::int32_t* tokens, const float* d_y, float* d_table) override;
  double cross_entropy(std::size_t rows, std::size_t classes, const std::int32_t* targets,
                       float* logits) override;
  void adamw(const AdamwStep& step, std::size_t count, const float* gradient, float* parameters,
             float* first_moment, float* second_moment) override;

 private:
  // A kernel that loops over `count` elements.
  template <typename... Arguments>
  void for_each(std::string_view kernel, std::size_t count, const Arguments&... arguments);
  // At least `count` elements, whose contents the next call of scratch() may take.
  float* scratch(std::size_t count);

  CudaDevice device_;
  CudaProduct product_;
  std::optional<Array<float>> scratch_;
  std::optional<Array<double>> losses_;  // of rows, and behind them the mean
};

}  // namespace train
