#include "runtime/device/cpu_facts.hpp"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <string_view>
#include <vector>

#include "runtime/device/cpu_pool.hpp"
#include "runtime/support/undisturbed_rate.hpp"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of this thread alone: time in which another process had its core does not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
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
constexpr int kSteps = 20000;
constexpr int kRepeats = 5;
// Parts of equal work that each thread does, after some that only warm it up.
constexpr int kPartsPerThread = 96;
constexpr int kWarmUpParts = 8;
// Fewer, as reads take longer: 96 cost a process' first call 0.1 s.
constexpr int kReadsPerThread = 24;
constexpr int kWarmUpReads = 2;

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

// How long each part took that the threads of the pool did, all of them at once: two may share a
// core and all share its caches, and clocks fall under wide vectors on every core. Each part is
// shorter than a turn of the scheduler, so that most are undisturbed on a busy machine too.
std::vector<double> seconds_of_parts(const std::function<void(int part)>& work, int parts) {
  struct Run {
    const std::function<void(int)>& work;
    std::vector<double> seconds;
  } run{work, std::vector<double>(static_cast<std::size_t>(parts))};
  CpuPool::shared().run(
      parts,
      [](void* context, int part) {
        auto* of = static_cast<Run*>(context);
        const double start = thread_seconds();
        of->work(part);
        of->seconds[static_cast<std::size_t>(part)] = thread_seconds() - start;
      },
      &run);
  return std::move(run.seconds);
}

// fp32 multiply-adds of all threads together, GFLOP/s.
double measure_gflops() {
  const bool wide = cpu_has_avx512();
  const int threads = CpuPool::shared().threads();
  const auto part = [&](int) { keep(wide ? run_avx512() : run_avx2()); };
  seconds_of_parts(part, kWarmUpParts * threads);
  const double rate = undisturbed_rate(seconds_of_parts(part, kPartsPerThread * threads));
  return 2.0 * kChains * kSteps * (wide ? 16 : 8) * threads * rate * 1e-9;
}

// What all threads read together, GB/s, each a part of a buffer larger than their L2 caches.
double measure_bandwidth() {
  constexpr std::size_t kPart = std::size_t{4} << 20;
  constexpr std::size_t kLongs = kPart / sizeof(long);
  const int threads = CpuPool::shared().threads();
  const int buffers = std::min(threads, 16);
  const std::vector<long> memory(kLongs * static_cast<std::size_t>(buffers), 1);
  const auto part = [&](int index) {
    const long* from = memory.data() + kLongs * static_cast<std::size_t>(index % buffers);
    long sum = 0;
    for (std::size_t i = 0; i < kLongs; ++i) sum += from[i];
    asm volatile("" : : "r"(sum));
  };
  seconds_of_parts(part, kWarmUpReads * threads);
  const double rate = undisturbed_rate(seconds_of_parts(part, kReadsPerThread * threads));
  return static_cast<double>(kPart) * buffers * rate * 1e-9;
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
