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
// The plans that a search of another spec tries first, forward.
std::vector<std::string> first_plans(const std::string& yaml, std::int64_t batch,
                                     std::int64_t heads, std::int64_t kv_heads, std::int64_t q_len,
                                     std::int64_t kv_len);

// Of one kind of data that a problem was measured on.
struct Kind {
  double live, full;
};

// Of one kind of lengths likewise.
struct LengthKind {
  double longest, filled;
  int page_size;
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
  // On which another spec's was.
  std::vector<LengthKind> length_kinds(const std::string& yaml, std::int64_t batch,
                                       std::int64_t heads, std::int64_t kv_heads,
                                       std::int64_t q_len, std::int64_t kv_len) const;

 private:
  struct Directory;
  std::unique_ptr<Directory> directory_;
};

}  // namespace hosted
