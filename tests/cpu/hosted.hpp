// What a test of a host's knows of Attune's inside: attune.hpp and the library's own headers have
// names in common, so that one file includes one of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hosted {

inline constexpr const char* kYaml =
    "attune: 1\nname: hosted\ndtype: fp32\nhead_dim: 16\nlayout: bhsd\n"
    "scalars: {reach: int}\ntensors:\n  doc: {dtype: int32, dims: [batch, kv_len]}\n"
    "mask: document(doc) and q_idx - kv_idx < reach\npasses: [forward, backward]\n";
inline constexpr std::int64_t kHeads = 2, kLength = 256, kDim = 16;  // one batch entry and K/V head

// Why the CPU family cannot run here; empty: it can.
std::string missing();

// The plans that a search of kYaml tries first.
std::vector<std::string> first_plans(bool backward = false);

// Of one kind of data that a problem was measured on.
struct Kind {
  double live, full;
};

// A cache file that goes away with the object.
class CacheFile {
 public:
  CacheFile();
  ~CacheFile();
  CacheFile(const CacheFile&) = delete;
  CacheFile& operator=(const CacheFile&) = delete;
  std::string path() const;
  // On which kYaml's forward pass was measured.
  std::vector<Kind> kinds() const;

 private:
  struct Directory;
  std::unique_ptr<Directory> directory_;
};

}  // namespace hosted
