// What a launch that appends to a cache takes: plain data, read by the host and by kernels.
#pragma once

#include "templates/params.h"

namespace att {

constexpr int kMaxRotaryPairs = 128;

struct RowStrides {  // in elements
  long long seq, head;
};

// q, q_out [tokens, heads, qk], k [tokens, kv_heads, qk], v [tokens, kv_heads, v] by strides; the
// last dim is contiguous and every stride a multiple of 16 bytes. Of the cache's strides `batch` is
// a page's, or a sequence's where there are no pages.
struct AppendParams {
  const void* q;  // null: k and v alone
  void* q_out;    // may be q
  const void* k;
  const void* v;
  void* k_cache;
  void* v_cache;
  RowStrides q_stride, q_out_stride, k_stride, v_stride;
  Strides k_cache_stride, v_cache_stride;
  int batch, tokens, heads, kv_heads;
  int kv_len;  // the most keys of a sequence; with cu_kv, rows of the cache
  // Of the device, and anything: templates/append/token.h clamps what it finds.
  const int* cu_q;     // [batch + 1]
  const int* used_q;   // [batch]; null: all tokens are there
  const int* cu_kv;    // [batch + 1]; null unless sequences are packed in the cache
  const int* used_kv;  // [batch], how many keys there are with the new ones; null: all there can be
  const int* positions;  // [tokens], by which they turn; null: by where their keys lie
  PageTable page_table;  // no entries: no pages
  // Cosine and sine of each position and pair, rows table_stride apart; null: by `turns`.
  const float* cosines;
  const float* sines;
  long long table_stride;
  int table_positions;
  // By which part of a turn, in 2^-64, each pair goes on from a position to the next.
  unsigned long long turns[kMaxRotaryPairs];
  CacheScales k_scales, v_scales;  // read only when the cache is of fp8
};

}  // namespace att
