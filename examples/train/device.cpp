#include "cpu_dense.hpp"
#include "dense.hpp"

namespace train {

std::unique_ptr<Dense<float>> make_dense(const std::string& device, Workers& workers) {
  if (device == "cpu") return std::make_unique<CpuDense<float>>(workers);
  throw Error(Exit::kNothingToRunOn, device + ": the model runs on the CPU only");
}

}  // namespace train
