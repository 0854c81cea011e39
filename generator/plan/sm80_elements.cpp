#include "generator/plan/sm80_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "generator/plan/family.hpp"

namespace attune {
namespace {

// Head dims are padded to the 16 columns of two blocks of 8.
int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

constexpr int products(Precision precision) { return precision == Precision::kStrict ? 3 : 1; }

}  // namespace

int Sm80Elements::row_bytes(int head_dim) const {
  const int own = bytes * padded(head_dim);
  return (own + row_alignment_bytes - 1) / row_alignment_bytes * row_alignment_bytes;
}

// NVRTC 13.0. With three products: d 128 c32 (120), d 256 c16 (168) and d 96 qreg c32 (152) compile
// with 16 bytes of spills at most, d 256 c32 (184) with 98, d 64 with 32 rows a warp and a mask
// (144) with 20. With one: d 128 with 32 rows a warp (176) and d 128 qreg c16 (144) with none, d 64
// qreg with 32 rows (176) with 16.
int Sm80Elements::most_registers(bool q_in_registers, int blocks) const {
  const bool in_parts = score_registers > 1;
  if (q_in_registers) return in_parts ? 152 : 150;
  return !in_parts ? 176 : blocks > 1 ? 140 : 170;
}

Status Sm80Elements::check_copies(const AttentionSpec& spec, int threads) const {
  const int widest = bytes * padded(std::max(spec.head_dim_qk, spec.head_dim_v)) / 16;
  if (static_cast<int>(std::bit_ceil(static_cast<unsigned>(widest))) <= threads) return ok_status();
  return plan_unsupported(
      fmt::format("{} threads for rows of {} units of 16 bytes", threads, widest));
}

Status check_sm80_dtype(const AttentionSpec& spec) {
  ATT_CHECK(check_plain_cache(spec, "sm80"));
  if (spec.dtype != DType::kFp8E4m3) return ok_status();
  return plan_unsupported("the sm80 family computes in fp16, bf16 and fp32, not fp8_e4m3");
}

Sm80Elements sm80_elements(const AttentionSpec& spec) {
  if (spec.dtype != DType::kF32) {
    return {.bytes = 2,
            .step_columns = 16,
            .least_keys = 32,
            .least_dropped_keys = 32,
            .longest_chunk = 64,
            .most_chunks = 256,
            .most_key_groups = 1,
            .score_registers = 1,
            .other_registers = 0,
            .matrix_clocks = 1,
            .split_clocks = 0,
            .row_alignment_bytes = 32};
  }
  const bool in_parts = spec.precision == Precision::kStrict;
  // tf32 has half the rate of 2-byte elements.
  return {.bytes = 4,
          .step_columns = 8,
          .least_keys = 16,
          .least_dropped_keys = 16,
          .longest_chunk = 32,
          .most_chunks = in_parts ? 1 : 2,
          .most_key_groups = 4,
          .score_registers = in_parts ? 2 : 1,
          .other_registers = in_parts ? 24 : 8,
          .matrix_clocks = 2.0 * products(spec.precision),
          .split_clocks = in_parts ? 4.0 : 2.0,
          .row_alignment_bytes = 128};
}

std::string sm80_element_constants(const AttentionSpec& spec) {
  if (spec.dtype != DType::kF32) return "";
  return fmt::format("constexpr int kTf32Products = {};  // 3: of operands in two parts\n",
                     products(spec.precision));
}

}  // namespace attune
