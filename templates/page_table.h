// The table that says in which page of a cache a sequence's keys lie. It is the caller's device
// memory, which nobody has checked: whatever it holds, no page outside the cache comes of it.
#pragma once

#include "templates/params.h"
#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN const PageTable& page_table_of(const ForwardParams& p) {
  return static_cast<const PagedParams&>(p).page_table;
}

// Which of its sequence's pages a key lies in.
ATT_FN int page_of_key(const PageTable& table, int key) {
  return static_cast<int>(static_cast<unsigned long long>(static_cast<unsigned>(key)) *
                              table.multiplier >>
                          table.shift);
}

// Where a key of a sequence lies: row `row` of page `page` of the cache; no such page: nowhere.
struct PagedKey {
  int page, row;
};

// Of key `key` of sequence b, one of those that the sequence has, as the table says.
ATT_FN PagedKey listed_key(const PageTable& table, int b, int key) {
  const int own = page_of_key(table, key);
  return {table.entries[static_cast<long long>(b) * table.pages_per_sequence + own],
          key - own * table.page_size};
}

// Nowhere, if that is no page of the cache. Apart from listed_key(), as it waits for what is read.
ATT_FN PagedKey checked_key(const PageTable& table, const PagedKey& listed) {
  const bool exists = static_cast<unsigned>(listed.page) < static_cast<unsigned>(table.pages);
  return {exists ? listed.page : -1, listed.row};
}

ATT_FN PagedKey paged_key(const PageTable& table, int b, int key) {
  return checked_key(table, listed_key(table, b, key));
}

// How many rows of K or V the tensor unit brings at once to tiles of `tile` rows: a power of two
// that divides pages and tiles alike.
ATT_FN int page_box_rows(int page_size, int tile) {
  const int of_page = page_size & -page_size, of_tile = tile & -tile;
  return of_page < of_tile ? of_page : of_tile;
}
// Boxes of fewer rows take the tensor unit longer than sm80's copies take (H200: 64 queries on 8192
// keys, boxes of 8 rows 893 us, of 16 543 and of 64 342; sm80 647).
constexpr int kLeastPageBoxRows = 16;

}  // namespace att
