#include "generator/plan/cpu_registers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "generator/plan/family.hpp"
#include "templates/cpu/register_block.h"

namespace attune {
namespace {

constexpr int kAvx2Bytes = 32;
constexpr int kAvx512Bytes = 64;
constexpr int kAvx2Registers = 16;
constexpr int kAvx512Registers = 32;

bool has_avx512(const DeviceFacts& device) {
  return device.registers_per_processor >= kAvx512Registers;
}

// AVX-512 on 16 threads of a Sapphire Rapids Xeon and one core of a Zen 4, AVX2 on the latter; the
// forward pass, d 64, s 2048.
struct Measured {
  RegisterBlock block;
  double share;
};
constexpr std::array<Measured, 9> kMeasured = {{
    {{kAvx512Bytes, 8, 3}, 0.90},
    {{kAvx512Bytes, 12, 2}, 0.87},
    {{kAvx512Bytes, 6, 4}, 0.88},
    {{kAvx512Bytes, 4, 6}, 0.86},
    {{kAvx512Bytes, 8, 2}, 0.79},
    {{kAvx512Bytes, 8, 1}, 0.60},
    {{kAvx2Bytes, 6, 2}, 0.78},
    {{kAvx2Bytes, 4, 2}, 0.72},
    {{kAvx2Bytes, 8, 1}, 0.70},
}};

// Less than any that was: what was not measured is left to the tuner.
constexpr double kUnknownShare = 0.5;

std::optional<double> measured_share(const RegisterBlock& block) {
  const auto* const found = std::ranges::find(kMeasured, block, &Measured::block);
  if (found == kMeasured.end()) return std::nullopt;
  return found->share;
}

// The share of the multiply-add peak that kernels reached with the block; with rows of a head dim.
double product_share(const RegisterBlock& block) {
  return measured_share(block).value_or(kUnknownShare);
}
double product_share(const RegisterBlock& block, int head_dim) {
  RegisterBlock smaller = block;
  smaller.unroll = att::rows_of_block(head_dim, block.unroll);
  return measured_share(smaller).value_or(product_share(block));
}

// fp32 operations of one thread in a clock, as processors are designed: a power of two, of which
// clocks that fall under wide vectors leave three fifths at least. What was measured differs from
// process to process, and a search that is repeated must ask for the same candidates.
double flops_per_clock(const DeviceFacts& device) {
  constexpr double kLeastShare = 0.6;
  const double measured = device.matrix_tflops * 1e3 / device.processor_count / device.clock_ghz;
  return std::exp2(std::floor(std::log2(measured / kLeastShare)));
}

}  // namespace

std::vector<RegisterBlock> register_blocks(const DeviceFacts& device) {
  std::vector<RegisterBlock> blocks;
  for (const Measured& measured : kMeasured) {
    // AVX2 is left to machines that have nothing wider.
    if ((measured.block.vector_bytes == kAvx512Bytes) == has_avx512(device)) {
      blocks.push_back(measured.block);
    }
  }
  return blocks;
}

Status check_registers(const RegisterBlock& block, const DeviceFacts& device) {
  if (block.vector_bytes != kAvx2Bytes && block.vector_bytes != kAvx512Bytes) {
    return plan_unsupported("vectors of 32 or 64 bytes");
  }
  if (block.vector_bytes == kAvx512Bytes && !has_avx512(device)) {
    return plan_unsupported(fmt::format("{} has no AVX-512", device.name));
  }
  if (block.unroll < 1 || block.columns < 1 || block.unroll > 16 || block.columns > 8) {
    return plan_unsupported("1 to 16 rows and 1 to 8 vectors in registers");
  }
  const int registers = block.vector_bytes == kAvx512Bytes ? kAvx512Registers : kAvx2Registers;
  if (block.registers() > registers) {
    return plan_unsupported(
        fmt::format("{} vector registers, {} are there", block.registers(), registers));
  }
  return ok_status();
}

double product_clocks(const RegisterBlock& block, double flops, const DeviceFacts& device) {
  return flops / (flops_per_clock(device) * product_share(block));
}

double product_clocks(const RegisterBlock& block, double flops, const DeviceFacts& device,
                      int head_dim) {
  return flops / (flops_per_clock(device) * product_share(block, head_dim));
}

double copy_clocks(const AttentionSpec& spec, double rows, double dims) {
  constexpr double kCopyBytesPerClock = 16;
  if (spec.dtype == DType::kF32 && spec.layout == Layout::kBhsd) return 0;
  return rows * dims * 4 / kCopyBytesPerClock;
}

}  // namespace attune
