// Which sequence a new token is of, and where in the cache its key belongs. Offsets, lengths and
// tables are the caller's device memory, which nobody has checked: whatever they hold, no row
// outside the cache comes of it.
#pragma once

#include "templates/append/params.h"
#include "templates/kernels/append_head.cuh"
#include "templates/page_table.h"

namespace att {

struct NewToken {
  bool exists;   // it is some sequence's
  int position;  // by which it turns; negative where there are more new tokens than keys
  PagedKey row;  // its row in the cache; page negative: it has none
};

ATT_FN int clamp_i32(int x, int most) { return x < 0 ? 0 : x < most ? x : most; }

// The last sequence that begins at or before `token`.
ATT_FN int sequence_of_token(const AppendParams& p, int token) {
  int first = 0, last = p.batch - 1;
  while (first < last) {
    const int middle = first + (last - first + 1) / 2;
    if (p.cu_q[middle] <= token) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

ATT_FN NewToken new_token(const AppendParams& p, int token) {
  constexpr NewToken kNone = {false, 0, {-1, 0}};
  const int b = sequence_of_token(p, token);
  const int begin = clamp_i32(p.cu_q[b], p.tokens), end = clamp_i32(p.cu_q[b + 1], p.tokens);
  int count = end < begin ? 0 : end - begin;
  if (p.used_q != nullptr) count = clamp_i32(p.used_q[b], count);
  if (token < begin || token >= begin + count) return kNone;

  int first_key = 0, room = p.kv_len;
  if (p.cu_kv != nullptr) {
    first_key = clamp_i32(p.cu_kv[b], p.kv_len);
    const int end_key = clamp_i32(p.cu_kv[b + 1], p.kv_len);
    room = end_key < first_key ? 0 : end_key - first_key;
  }
  const int keys = p.used_kv != nullptr ? clamp_i32(p.used_kv[b], room) : room;
  const int key = keys - count + (token - begin);
  const int position = p.positions != nullptr ? p.positions[token] : key;
  if (key < 0) return {true, position, {-1, 0}};
  if (p.page_table.entries != nullptr) return {true, position, paged_key(p.page_table, b, key)};
  if (p.cu_kv != nullptr) return {true, position, {0, first_key + key}};
  return {true, position, {b, key}};
}

ATT_FN long long cache_offset(const Strides& stride, const PagedKey& row, int head) {
  return row.page * stride.batch + head * stride.head + row.row * stride.seq;
}
ATT_FN long long row_offset(const RowStrides& stride, int token, int head) {
  return token * stride.seq + head * stride.head;
}

}  // namespace att
