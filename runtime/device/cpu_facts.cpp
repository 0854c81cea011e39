#include "runtime/device/cpu_facts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string_view>
#include <vector>

#include "runtime/device/cpu_pool.hpp"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "x86-64";
}

// As many independent sums as hide the latency of a multiply-add on every processor since Haswell.
constexpr int kChains = 12;
constexpr int kSteps = 100000;
constexpr int kRepeats = 5;

template <typename Vec>
[[gnu::always_inline]] inline float multiply_add_chains() {
  // Unknown to the compiler, which would do equal chains once.
  const float zeros[kChains] = {};
  const float* start = zeros;
  asm volatile("" : "+r"(start) : : "memory");
  Vec sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Vec{} + start[i];
  const Vec factor = Vec{} + 0.999f;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + factor;
  }
  Vec total = {};
  for (int i = 0; i < kChains; ++i) total += sums[i];
  return total[0];
}

typedef float Vec32 __attribute__((vector_size(32)));
typedef float Vec64 __attribute__((vector_size(64)));

// GCC unrolls the chains at -O3 only, and without that they lie in memory; Clang does at -O2.
#ifdef __clang__
#define ATT_UNROLLED
#else
#define ATT_UNROLLED [[gnu::optimize("O3")]]
#endif
ATT_UNROLLED [[gnu::target("avx2,fma")]] float run_avx2() { return multiply_add_chains<Vec32>(); }
ATT_UNROLLED [[gnu::target("avx512f")]] float run_avx512() { return multiply_add_chains<Vec64>(); }

// Keeps a result alive.
void keep(float value) { asm volatile("" : : "x"(value)); }

// fp32 multiply-adds of all threads at once, GFLOP/s: two of them may share a core, and clocks fall
// under wide vectors on every core. The best of a few short runs, for clocks rise with load at
// first.
double measure_gflops() {
  const bool wide = cpu_has_avx512();
  CpuPool& pool = CpuPool::shared();
  // A few parts a thread, so that one that starts late does not decide the time.
  constexpr int kPartsPerThread = 4;
  const int parts = pool.threads() * kPartsPerThread;
  const CpuPool::Work part =
      wide ? [](void*, int) { keep(run_avx512()); } : [](void*, int) { keep(run_avx2()); };
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    pool.run(parts, part, nullptr);
    best = std::min(best, seconds_since(start));
  }
  return 2.0 * kChains * kSteps * (wide ? 16 : 8) * parts / best * 1e-9;
}

// What all threads read together, GB/s, each a part of a buffer larger than their L2 caches.
double measure_bandwidth() {
  constexpr std::size_t kPart = std::size_t{4} << 20;
  struct Parts {
    std::vector<long> memory;
    std::size_t part_longs = kPart / sizeof(long);
  } parts;
  CpuPool& pool = CpuPool::shared();
  const int count = std::min(pool.threads(), 16);
  parts.memory.assign(parts.part_longs * static_cast<std::size_t>(count), 1);
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    pool.run(
        count,
        [](void* context, int item) {
          const auto* p = static_cast<const Parts*>(context);
          const long* from = p->memory.data() + p->part_longs * static_cast<std::size_t>(item);
          long sum = 0;
          for (std::size_t j = 0; j < p->part_longs; ++j) sum += from[j];
          asm volatile("" : : "r"(sum));
        },
        &parts);
    best = std::min(best, seconds_since(start));
  }
  return static_cast<double>(kPart) * count / best * 1e-9;
}

// The clock of a chain of dependent multiplications, three cycles each on every x86-64 since 2008.
// (Additions of constants take none on some.)
double measure_clock_ghz() {
  constexpr int kMultiplications = 100000;
  constexpr int kLatency = 3;
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    long value = 3;
    const auto start = Clock::now();
    for (int j = 0; j < kMultiplications; j += 5) {
      asm volatile("imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0"
                   : "+r"(value));
    }
    best = std::min(best, seconds_since(start));
  }
  return kLatency * kMultiplications / best * 1e-9;
}

DeviceFacts measure() {
  DeviceFacts facts;
  facts.name = processor_name();
  facts.target = Target::kCpu;
  facts.processor_count = CpuPool::shared().threads();
  facts.registers_per_processor = cpu_has_avx512() ? 32 : 16;
  facts.l2_bytes = std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE));
  facts.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  if (!cpu_has_avx2()) return facts;
  facts.clock_ghz = measure_clock_ghz();
  facts.matrix_tflops = measure_gflops() * 1e-3;
  facts.memory_gb_per_s = measure_bandwidth();
  return facts;
}

}  // namespace

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

const DeviceFacts& cpu_facts() {
  static const DeviceFacts facts = measure();
  return facts;
}

std::string cpu_identity() {
  return fmt::format("{} / {} threads / {}", processor_name(), CpuPool::shared().threads(),
                     cpu_has_avx512() ? "avx512" : "avx2");
}

}  // namespace attune
