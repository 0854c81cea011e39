#include <charconv>

#include "cpu_dense.hpp"
#include "cuda_dense.hpp"
#include "dense.hpp"

namespace train {

std::unique_ptr<Dense<float>> make_dense(const std::string& device, Workers& workers,
                                         Products products) {
  constexpr std::string_view kCuda = "cuda:";
  if (!device.starts_with(kCuda)) return std::make_unique<CpuDense<float>>(workers);
  int ordinal = 0;
  std::from_chars(device.data() + kCuda.size(), device.data() + device.size(), ordinal);
  return std::make_unique<CudaDense>(ordinal, products);
}

}  // namespace train
