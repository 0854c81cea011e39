// Published facts of one part per target, for planning on a machine without it.
#include "generator/plan/plan.hpp"

namespace attune {

// Sources: NVIDIA's architecture whitepapers and datasheets; shared memory from the CUDA
// Programming Guide, table "Technical Specifications per Compute Capability". matrix_tflops is the
// dense bf16 rate with fp32 accumulation at the boost clock given.
DeviceFacts device_facts(Target target) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  constexpr int kKiB = 1024;
  DeviceFacts facts;
  facts.target = target;
  const auto set = [&facts](const char* name, int processors, int block_kib, int processor_kib,
                            std::int64_t l2, std::int64_t memory, double ghz, double tflops,
                            double gb_per_s) {
    facts.name = name;
    facts.processor_count = processors;
    facts.shared_memory_per_block_bytes = block_kib * kKiB;
    facts.shared_memory_per_processor_bytes = processor_kib * kKiB;
    facts.l2_bytes = l2;
    facts.memory_bytes = memory;
    facts.clock_ghz = ghz;
    facts.matrix_tflops = tflops;
    facts.memory_gb_per_s = gb_per_s;
  };
  switch (target) {
    case Target::kSm80:
      set("NVIDIA A100", 108, 163, 164, 40 * kMiB, 80 * kGiB, 1.41, 312, 2039);
      break;
    case Target::kSm86:
      set("NVIDIA RTX A6000", 84, 99, 100, 6 * kMiB, 48 * kGiB, 1.80, 155, 768);
      break;
    case Target::kSm89:
      set("NVIDIA L40S", 142, 99, 100, 96 * kMiB, 48 * kGiB, 2.52, 362, 864);
      break;
    case Target::kSm90a:
      set("NVIDIA H200", 132, 227, 228, 50 * kMiB, 141 * kGiB, 1.83, 989, 4800);
      break;
    case Target::kSm100:
      set("NVIDIA B200", 148, 227, 228, 126 * kMiB, 180 * kGiB, 1.85, 2250, 8000);
      break;
    case Target::kSm120:
      set("NVIDIA GeForce RTX 5090", 170, 99, 100, 96 * kMiB, 32 * kGiB, 2.41, 210, 1792);
      break;
    case Target::kCpu:
      // One core of a contemporary server, AVX2 fp32: 2 FMA units of 8 lanes.
      set("x86-64 host", 1, 0, 0, 2 * kMiB, 16 * kGiB, 3.0, 0.096, 20);
      facts.registers_per_processor = 16;
      break;
  }
  return facts;
}

}  // namespace attune
