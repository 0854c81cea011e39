// A directory that goes away with the test, and rows to put in a cache.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace attune::cache_testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // Syncs of every commit cost nothing in memory.
    const std::filesystem::path memory = "/dev/shm";
    const auto base =
        access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
    std::string name = (base / "attune-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string file(const std::string& name = "attune.db") const { return path_ + "/" + name; }
  // Names in the directory that contain `part`.
  std::vector<std::string> names_with(const std::string& part) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string name = entry.path().filename().string();
      if (name.find(part) != std::string::npos) names.push_back(name);
    }
    return names;
  }

 private:
  std::string path_;
};

inline const std::string kDevice = "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159";
inline const std::string kOtherDriver = "NVIDIA H200 / 132 SMs / 143771 MiB / driver 590.12";

inline BuildKey build_key(int number) {
  return {.spec_hash = "spec",
          .plan = "plan-" + std::to_string(number),
          .body_hash = "body",
          .compiler = "nvrtc 13.0.88",
          .target = "sm_90a"};
}

inline CodeRecord code(int number, std::size_t bytes = 20000) {
  CodeRecord record{.registers = 128 + number, .compile_seconds = 0.5};
  for (std::size_t i = 0; i < bytes; ++i) {
    record.image.push_back(
        static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(number) * 7 + (i >> 8)));
  }
  return record;
}

inline MeasurementKey measurement_key(std::int64_t kv_len = 4096) {
  return {.spec_hash = "spec",
          .device = kDevice,
          .shape = {.batch = 2, .heads = 32, .kv_heads = 8, .q_len = kv_len, .kv_len = kv_len},
          .protocol = "events-cold-l2-2"};
}

inline Measurement measurement(const std::string& plan, double median_us) {
  BuildKey key = build_key(0);
  key.plan = plan;
  return {.plan = plan,
          .build_digest = key.digest(),
          .median_us = median_us,
          .spread_us = 1,
          .samples = 30,
          .threads = 128,
          .registers = 100,
          .shared_bytes = 1000,
          .measured_at = "2026-01-02T03:04:05Z",
          .conditions = "{}"};
}

// Leaves SQLite's mark of a cache file and nothing else of its header.
inline void damage_header(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(16).write(std::string(84, '\xff').data(), 84);
}

// Options whose warnings are kept.
struct Warnings {
  std::vector<std::string> ids;
  StoreOptions options() {
    return {.warn = [this](const Error& error) { ids.push_back(error.id); }};
  }
};

}  // namespace attune::cache_testing
