// While CTAs wait for the launch in front that lists the pieces, memory has nothing to do: some
// keys come to L2 meanwhile. Which keys a CTA will have nobody knows yet. It brings the first ones
// of the sequence that would be its own if all were alike and whole; if they are not, some CTA
// reads them all the same, and soon, as these are the ones that begin.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/decode_cache.cuh"
#include "templates/tile/page_rows.cuh"

namespace att {

// The whole CTA calls it, a key each thread. CTAs for which there is no room at first begin when
// the list is there, and do nothing.
ATT_FN void bring_keys_ahead(const ListKernelParams& p, int cta) {
  const int b = cta / p.kv_heads, h_kv = cta % p.kv_heads;
  if (b >= p.batch || cta >= plan::kMinCtas * p.pieces.processors) return;
  const Sequence sequence = sequence_of(p, b);
  if (sequence.q_len <= 0 || sequence.kv_len <= 0) return;
  int key = thread_index();
  if constexpr (spec::kHasMask) {
    const Context c = context_of(p, sequence, b, h_kv * (p.heads / p.kv_heads), h_kv);
    key += kv_bounds(c, 0, min_i32(sequence.q_len, plan::kTileQ)).begin;
  }
  if (key >= sequence.kv_len) return;
  const auto bring = [&](const void* tensor, const Strides& of, int columns) {
    const Strides& stride = Cache::copied(of);
    long long before;
    if constexpr (spec::kIsPaged) {
      const PagedKey at = paged_key(page_table_of(p), b, key);
      if (at.page < 0) return;
      before = key_offset(at, stride, h_kv);
    } else {
      before = key_offset(sequence, stride, h_kv, key);
    }
    bring_to_l2(static_cast<const char*>(tensor) + 2 * before, 2 * Cache::copied(columns));
  };
  bring(p.k, p.k_stride, spec::kHeadDimQk);
  bring(p.v, p.v_stride, spec::kHeadDimV);
}

}  // namespace att
