// What this machine's processor is, asked of the system and measured.
#pragma once

#include <string>

#include "generator/plan/plan.hpp"

namespace attune {

// Facts of the processors that `threads` threads of this process run on. matrix_tflops is fp32
// multiply-adds as measured on one thread in the widest vectors, times the threads; memory_gb_per_s
// what they read together. A few milliseconds at the first call, remembered. Thread-safe.
const DeviceFacts& cpu_facts();

// "AMD EPYC 9B14 / 16 threads / avx512".
std::string cpu_identity();

// Whether the kernels' instruction sets are there: AVX2 with FMA and F16C, or AVX-512 (F, BW, DQ,
// VL) besides.
bool cpu_has_avx2();
bool cpu_has_avx512();

}  // namespace attune
