#include "runtime/reference/operands.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace attune {
namespace {

void round_all(std::vector<double>& values) {
  for (double& value : values) value = round_to_tf32(value);
}

}  // namespace

bool rounds_operands(const AttentionSpec& spec, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kMatrixUnit && spec.dtype == DType::kF32 &&
         spec.precision == Precision::kTf32 && !has_scaled_cache(spec);
}

double round_to_tf32(double value) {
  if (!std::isfinite(value)) return value;
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

HostProblem with_tf32_operands(HostProblem problem) {
  round_all(problem.q);
  round_all(problem.k);
  round_all(problem.v);
  return problem;
}

OutputGradients with_tf32_operands(OutputGradients gradients) {
  round_all(gradients.d_o);
  return gradients;
}

}  // namespace attune
