// Matrix products on a GPU: by cuBLAS where it is, else by a kernel of kernels.cu.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cublas.hpp"
#include "cuda_device.hpp"
#include "dense.hpp"

namespace train {

class CudaProduct {
 public:
  // The device's code is that of kernels.cu. Throws Error where cuBLAS is asked for and missing.
  CudaProduct(CudaDevice& device, Products by);
  // In fp32. Enqueued; the same bits each time.
  void run(const Product& product, const float* a, const float* b, float* c);
  std::string name() const;  // "cuBLAS 13.1.0"

 private:
  void run_own(const Product& product, const float* a, const float* b, float* c);

  CudaDevice& device_;
  std::unique_ptr<Cublas> cublas_;
  std::optional<Array<float>> parts_;
};

}  // namespace train
