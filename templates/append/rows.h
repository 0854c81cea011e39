// What is done with a new token's rows: heads of q and k turn, and k and v go to the cache. The
// same text for every target; what an element is in storage stands before it (Storage, StorageOf,
// to_float, from_float).
#pragma once

#include "templates/append/angle.h"
#include "templates/append/fp8.h"
#include "templates/append/params.h"
#include "templates/append/token.h"
#include "templates/kernels/append_head.cuh"

namespace att {

using CacheStorage = StorageOf<append::kCacheDType>::Type;

// Elements that are copied at once, 16 bytes of the wider type at most.
constexpr int kMostAtOnce =
    16 / static_cast<int>(sizeof(Storage) > sizeof(CacheStorage) ? sizeof(Storage)
                                                                 : sizeof(CacheStorage));
// The largest power of two that divides x, at most kMostAtOnce.
ATT_FN constexpr int at_once(int x) {
  const int power = x & -x;
  return power == 0 || power > kMostAtOnce ? kMostAtOnce : power;
}

template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Chunk {
  T at[kCount];
};
template <typename T, int kCount>
ATT_FN Chunk<T, kCount> read_chunk(const T* from) {
  return *reinterpret_cast<const Chunk<T, kCount>*>(from);
}
template <typename T, int kCount>
ATT_FN void write_chunk(T* to, const Chunk<T, kCount>& chunk) {
  *reinterpret_cast<Chunk<T, kCount>*>(to) = chunk;
}

// Elements of one type keep their bits.
ATT_FN void convert(Storage from, float, Storage& to) { to = from; }
template <typename To>
ATT_FN void convert(Storage from, float inverse, To& to) {
  scaled_from_float(to_float(from), inverse, to);
}

// Columns [kFirst, kDim) of a head, times `inverse` where To has scales.
template <int kFirst, int kDim, typename To>
ATT_FN void copy_columns(const Storage* from, To* to, int chunk, float inverse) {
  constexpr int kCount = at_once(kFirst);
  const int column = kFirst + chunk * kCount;
  const auto in = read_chunk<Storage, kCount>(from + column);
  Chunk<To, kCount> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) convert(in.at[i], inverse, out.at[i]);
  write_chunk(to + column, out);
}
template <int kFirst, int kDim>
constexpr int kCopyChunks = (kDim - kFirst) / at_once(kFirst);

constexpr bool kIsInterleaved = append::kRotation == Rotation::interleaved;
// Elements of a chunk, and of pairs how many a pair of chunks, or a chunk of pairs, holds.
constexpr int kTurnedAtOnce = at_once(kIsInterleaved ? append::kRotaryDim : append::kRotaryDim / 2);
constexpr int kPairsAtOnce = kIsInterleaved ? kTurnedAtOnce / 2 : kTurnedAtOnce;
constexpr int kTurnedChunks =
    append::kRotation == Rotation::none ? 0 : append::kRotaryDim / 2 / kPairsAtOnce;

template <typename To>
ATT_FN void turn_chunk(const Storage* from, To* to, int chunk, const Turn (&turns)[kPairsAtOnce],
                       float inverse) {
  constexpr int kCount = kTurnedAtOnce;
  const auto turned = [&](float a, float b, int pair, To& to_a, To& to_b) {
    scaled_from_float(a * turns[pair].cosine - b * turns[pair].sine, inverse, to_a);
    scaled_from_float(b * turns[pair].cosine + a * turns[pair].sine, inverse, to_b);
  };
  const int column = chunk * kCount;
  const auto first = read_chunk<Storage, kCount>(from + column);
  Chunk<To, kCount> out;
  if constexpr (kIsInterleaved) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      turned(to_float(first.at[i]), to_float(first.at[i + 1]), i / 2, out.at[i], out.at[i + 1]);
    }
  } else {
    const int other = column + append::kRotaryDim / 2;
    const auto second = read_chunk<Storage, kCount>(from + other);
    Chunk<To, kCount> out_second;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      turned(to_float(first.at[i]), to_float(second.at[i]), i, out.at[i], out_second.at[i]);
    }
    write_chunk(to + other, out_second);
  }
  write_chunk(to + column, out);
}

// Worker `worker` does its part of kChunks chunks of `heads` heads: f(head, chunk, prepared), where
// prepared = prepare(chunk) is the same for all heads and made once for those that a worker has.
template <int kChunks, typename Prepare, typename F>
ATT_FN void for_chunks(int worker, int heads, const Prepare& prepare, const F& f) {
  if constexpr (kChunks > 0) {
    constexpr int kGroups = append::kWorkers > kChunks ? append::kWorkers / kChunks : 1;
    for (int unit = worker; unit < kChunks * kGroups; unit += append::kWorkers) {
      const int chunk = unit % kChunks, first = unit / kChunks;
      if (first >= heads) continue;
      const auto prepared = prepare(chunk);
      for (int head = first; head < heads; head += kGroups) f(head, chunk, prepared);
    }
  }
}

struct Turns {
  Turn of[kPairsAtOnce];
};

// What worker `worker` of append::kWorkers does for a token.
ATT_FN void append_token(const AppendParams& p, int token, int worker) {
  constexpr int kQk = append::kHeadDimQk, kV = append::kHeadDimV;
  constexpr int kTurned = kTurnedChunks > 0 ? append::kRotaryDim : 0;
  const NewToken place = new_token(p, token);
  if (!place.exists) return;
  const bool has_row = place.row.page >= 0;
  const int q_heads = p.q != nullptr ? p.heads : 0;
  const int k_heads = has_row ? p.kv_heads : 0;

  const auto q_row = [&](int head) {
    return static_cast<const Storage*>(p.q) + row_offset(p.q_stride, token, head);
  };
  const auto q_out_row = [&](int head) {
    return static_cast<Storage*>(p.q_out) + row_offset(p.q_out_stride, token, head);
  };
  const auto k_row = [&](int head) {
    return static_cast<const Storage*>(p.k) + row_offset(p.k_stride, token, head);
  };
  const auto k_cache_row = [&](int head) {
    return static_cast<CacheStorage*>(p.k_cache) + cache_offset(p.k_cache_stride, place.row, head);
  };
  const auto inverse = [&](const CacheScales& scales, int head) {
    return inverse_scale<CacheStorage>(scales, place.row.page, head);
  };
  const auto nothing = [](int) { return 0; };

  // Heads of k follow those of q.
  for_chunks<kTurnedChunks>(
      worker, q_heads + k_heads,
      [&](int chunk) {
        Turns turns;
#pragma unroll
        for (int i = 0; i < kPairsAtOnce; ++i) {
          turns.of[i] = turn_of(p, place.position, chunk * kPairsAtOnce + i);
        }
        return turns;
      },
      [&](int head, int chunk, const Turns& turns) {
        if (head < q_heads) {
          turn_chunk(q_row(head), q_out_row(head), chunk, turns.of, 1.0f);
        } else {
          turn_chunk(k_row(head - q_heads), k_cache_row(head - q_heads), chunk, turns.of,
                     inverse(p.k_scales, head - q_heads));
        }
      });
  if (p.q != p.q_out) {
    for_chunks<kCopyChunks<kTurned, kQk>>(worker, q_heads, nothing, [&](int head, int chunk, int) {
      copy_columns<kTurned, kQk>(q_row(head), q_out_row(head), chunk, 1.0f);
    });
  }
  for_chunks<kCopyChunks<kTurned, kQk>>(worker, k_heads, nothing, [&](int head, int chunk, int) {
    copy_columns<kTurned, kQk>(k_row(head), k_cache_row(head), chunk, inverse(p.k_scales, head));
  });
  if (p.v == nullptr) return;
  for_chunks<kCopyChunks<0, kV>>(worker, k_heads, nothing, [&](int head, int chunk, int) {
    copy_columns<0, kV>(
        static_cast<const Storage*>(p.v) + row_offset(p.v_stride, token, head),
        static_cast<CacheStorage*>(p.v_cache) + cache_offset(p.v_cache_stride, place.row, head),
        chunk, inverse(p.v_scales, head));
  });
}

// Item `item`: append::kTokens tokens.
ATT_FN void append_item(const AppendParams& p, int item, int worker) {
  const int first = item * append::kTokens;
  for (int token = first; token < first + append::kTokens && token < p.tokens; ++token) {
    append_token(p, token, worker);
  }
}

}  // namespace att
