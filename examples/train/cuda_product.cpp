#include "cuda_product.hpp"

#include <algorithm>

namespace train {
namespace {

constexpr std::size_t kTile = 64, kDepth = 16;  // of the kernel

}  // namespace

CudaProduct::CudaProduct(CudaDevice& device, Products by) : device_(device) {
  if (by == Products::kOwn) return;
  cublas_ = Cublas::open(device.stream());
  if (by == Products::kCublas && !cublas_) {
    throw Error(Exit::kNothingToRunOn, "cuBLAS 12 or newer could not be opened (libcublas.so)");
  }
}

std::string CudaProduct::name() const {
  return cublas_ ? "cuBLAS " + cublas_->version() : "the example's kernel";
}

void CudaProduct::run(const Product& product, const float* a, const float* b, float* c) {
  if (cublas_) return cublas_->multiply(product, a, b, c);
  run_own(product, a, b, c);
}

// A gradient of a weight has few elements and sums over all tokens: blocks share out the sum, and
// their parts are added up in their order.
void CudaProduct::run_own(const Product& product, const float* a, const float* b, float* c) {
  const auto [m, n, k, a_transposed, b_transposed] = product;
  const std::size_t tiles = quotient(m, kTile) * quotient(n, kTile);
  const std::size_t wanted = std::max<std::size_t>(1, 2 * device_.processors() / tiles);
  const std::size_t share = quotient(quotient(k, wanted), kDepth) * kDepth;
  const std::size_t parts = quotient(k, share);
  const std::size_t one = 1;
  const std::size_t a_row = a_transposed ? one : k, a_k = a_transposed ? m : one;
  const std::size_t b_k = b_transposed ? one : n, b_column = b_transposed ? k : one;
  if (parts > 1 && (!parts_ || parts_->size() < parts * m * n)) {
    parts_.reset();
    parts_.emplace(device_, parts * m * n);
  }
  float* to = parts > 1 ? parts_->data() : c;
  device_.launch("multiply", {quotient(m, kTile), quotient(n, kTile), parts}, CudaDevice::kThreads,
                 m, n, k, share, a, a_row, a_k, b, b_k, b_column, to);
  if (parts == 1) return;
  device_.launch("sum_parts", {quotient(m * n, CudaDevice::kThreads)}, CudaDevice::kThreads, m * n,
                 parts, to, c);
}

}  // namespace train
