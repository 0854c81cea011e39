// Pages of the cache: who has them, and where in memory a token's keys and values lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace serve {

// Which pages are free. A page is a number below count().
class PageAllocator {
 public:
  explicit PageAllocator(std::size_t pages) : count_(pages) {
    for (std::size_t page = pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
  }
  std::size_t count() const { return count_; }
  std::size_t free() const { return free_.size(); }
  std::size_t used_at_most() const { return used_at_most_; }

  // Makes `pages` `wanted` long. False, and nothing is changed: so many are not free.
  bool grow(std::vector<std::int32_t>& pages, std::size_t wanted) {
    if (wanted > pages.size() + free_.size()) return false;
    while (pages.size() < wanted) {
      pages.push_back(free_.back());
      free_.pop_back();
    }
    used_at_most_ = std::max(used_at_most_, count_ - free_.size());
    return true;
  }
  // Frees those behind the first `kept`.
  void shrink(std::vector<std::int32_t>& pages, std::size_t kept) {
    while (pages.size() > kept) {
      free_.push_back(pages.back());
      pages.pop_back();
    }
  }

 private:
  std::size_t count_, used_at_most_ = 0;
  std::vector<std::int32_t> free_;  // the last freed is the next taken: tables are soon shuffled
};

// Memory of the cache: [pages, layers, keys and values, page_size, kv_heads * head_dim], so that a
// page holds all that is known of its tokens. Offsets are in elements. A slot is a row of a page,
// page * page_size + row.
struct CacheShape {
  std::size_t pages, page_size, layers, columns;

  std::size_t matrix() const { return page_size * columns; }  // keys of a page and layer
  std::size_t page() const { return layers * 2 * matrix(); }
  std::size_t keys(std::size_t layer) const { return layer * 2 * matrix(); }
  std::size_t values(std::size_t layer) const { return keys(layer) + matrix(); }
  std::size_t size() const { return pages * page(); }
  // To be added to keys() or values().
  std::size_t row(std::size_t slot) const {
    return slot / page_size * page() + slot % page_size * columns;
  }
  std::size_t pages_for(std::size_t tokens) const { return (tokens + page_size - 1) / page_size; }
};

}  // namespace serve
