// The model's operations on the CPU's cores.
#pragma once

#include "cpu_product.hpp"
#include "dense.hpp"
#include "workers.hpp"

namespace train {

class HostMemory : public Memory {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void* data) override;
  void write(void* to, const void* host, std::size_t bytes) override;
  void read(void* host, const void* from, std::size_t bytes) override;
  void zero(void* data, std::size_t bytes) override;
};

// The same bits at every call, with any number of threads: sums over rows are in the rows' order.
template <typename T>
class CpuDense : public Dense<T> {
 public:
  explicit CpuDense(Workers& workers) : workers_(workers), product_(workers) {}

  std::string device() const override { return "the host's cores"; }
  Memory& memory() override { return memory_; }
  void* stream() override { return nullptr; }
  void multiply(const Product& product, const T* a, const T* b, T* c) override {
    product_.run(product, a, b, c);
  }
  void add(std::size_t count, const T* x, T* y) override;
  void to_bf16(std::size_t count, const T* x, std::uint16_t* y) override;
  void from_bf16(std::size_t count, const std::uint16_t* x, T* y) override;
  void rms_norm(std::size_t rows, std::size_t columns, const T* x, const T* gain, T* inverse,
                T* y) override;
  void rms_norm_gradient(std::size_t rows, std::size_t columns, const T* x, const T* gain,
                         const T* inverse, const T* d_y, T* d_x, T* d_gain) override;
  void gelu(std::size_t count, const T* x, T* y) override;
  void gelu_gradient(std::size_t count, const T* x, const T* d_y, T* d_x) override;
  void embed(std::size_t rows, std::size_t columns, const std::int32_t* tokens, const T* table,
             T* y) override;
  void embed_gradient(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                      const std::int32_t* tokens, const T* d_y, T* d_table) override;
  double cross_entropy(std::size_t rows, std::size_t classes, const std::int32_t* targets,
                       T* logits) override;
  void adamw(const AdamwStep& step, std::size_t count, const T* gradient, T* parameters,
             T* first_moment, T* second_moment) override;

 private:
  Workers& workers_;
  HostMemory memory_;
  CpuProduct<T> product_;
};

extern template class CpuDense<float>;
extern template class CpuDense<double>;

}  // namespace train
