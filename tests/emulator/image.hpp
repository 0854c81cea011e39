// What the emulated NVRTC makes and the emulated driver loads: a shared object behind a head.
#pragma once

#include <cstdlib>

namespace emu {

inline constexpr char kImageMagic[8] = {'A', 'T', 'T', 'E', 'M', 'U', '1', '\n'};
struct ImageHead {
  char magic[8];
  unsigned long long bytes;
};

// The GPU's compute capability times ten: 80 or 90. ATTUNE_EMULATOR_ARCH; default: 90.
inline int emulated_arch() {
  const char* chosen = std::getenv("ATTUNE_EMULATOR_ARCH");
  return chosen != nullptr ? std::atoi(chosen) : 90;
}
// Its memory: ATTUNE_EMULATOR_MEMORY, in MiB; default: 80 GiB.
inline std::size_t memory_bytes() {
  const char* chosen = std::getenv("ATTUNE_EMULATOR_MEMORY");
  return static_cast<std::size_t>(chosen != nullptr ? std::atoi(chosen) : 80 << 10) << 20;
}

}  // namespace emu
