// What this machine's processor is, asked of the system and measured.
#pragma once

#include <string>

#include "generator/plan/plan.hpp"

namespace attune {

// Facts of the processors that the pool's threads run on. matrix_tflops is fp32 multiply-adds in
// the widest vectors and memory_gb_per_s what is read, both measured on all threads at once and, as
// far as that can be told, without what other processes do to it. Some tens of milliseconds at the
// first call, remembered. Thread-safe.
const DeviceFacts& cpu_facts();

// "AMD EPYC 9B14 / 16 threads / avx512".
std::string cpu_identity();

// Whether the kernels' instruction sets are there: AVX2 with FMA and F16C, or AVX-512 (F, BW, DQ,
// VL) besides.
bool cpu_has_avx2();
bool cpu_has_avx512();

}  // namespace attune
