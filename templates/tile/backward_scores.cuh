// From raw products in a warp's accumulators, 16 rows of them, to P and dS: where the rows are keys
// and the columns queries, and the other way round.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/dropout_columns.cuh"
#include "templates/tile/logistic_cores.cuh"

namespace att {

ATT_FN float dropout_scale(const Context& c) {
  if constexpr (spec::kHasDropout) return dropout_keep_scale(c);
  return 1.0f;
}

// P of a raw product, and P times what the score changes by with the scaled product.
struct Probability {
  float value, slope;
};
// `reference`: the LSE in log2 units; with kSplitReferences the product has it already. `live` is
// for score functions; a dead element is 0 whatever its score's slope is. With kSharesReciprocals
// `product` is a score's core.
template <typename Query, typename Key>
ATT_FN Probability probability(const Context& c, float product, float reference, Query q, Key k,
                               bool live) {
  const float scale = softmax_scale(c.params);
  if constexpr (!spec::kHasScore) {
    const float value = math_exp2(product * (scale * kLog2E) - reference);
    return {value, value};
  } else if constexpr (kSharesReciprocals) {
    const float shift = kScoreOffset * kLog2E - reference;
    const float score = product * (kScoreMultiplier * kLog2E) + shift;
    const float value = math_exp2(live ? score : -infinity());
    const float steep = kLogisticSlope * product;
    return {value, value * (steep - steep * product)};
  } else {
    const float scaled = product * scale;
    const ScoreAndGradient score = score_with_grad(c, scaled, q, k);
    const float value = math_exp2(live ? score.score * kLog2E - reference : -infinity());
    return {value, kScoreGradIsOne ? value : value == 0.0f ? 0.0f : value * score.gradient};
  }
}

// The same of a score that adds a line along the keys, which is worked out once for a lane's keys
// of a query; `keys`: from the line's base.
constexpr bool kAddsLine = spec::kHasScore && kScoreIsLine && kScoreGradIsOne;
ATT_FN Probability with_line(const Context& c, float product, const ScoreLine& line, int keys,
                             float reference, bool live) {
  const float added = (line.base + line.step * keys) * kLog2E - reference;
  const float score = product * (softmax_scale(c.params) * kLog2E) + added;
  const float value = math_exp2(live ? score : -infinity());
  return {value, value};
}

template <bool kByRuns = false>
ATT_FN bool is_live_element(const Context& c, int q, int k) {
  if constexpr (!spec::kHasMask) return k < c.kv_len;
  if constexpr (kByRuns) return (k < c.kv_len) & mask_by_runs(c, q, k);
  return (k < c.kv_len) & mask(c, q, k);
}

// dS of P's slope and dP; D is the row's.
ATT_FN float score_gradient(float slope, float d_p, float delta, bool keeps, float keep_scale) {
  if constexpr (spec::kHasDropout) return slope * ((keeps ? d_p : 0.0f) * keep_scale - delta);
  return slope * (d_p - delta);
}

// Which elements of a partial tile are live. A score of minus infinity says so where it needs no
// score function, which might not keep it; else a bit.
template <int kColumns>
struct LiveBits {
  unsigned words[(kColumns + 63) / 64];

  ATT_MEMBER explicit LiveBits(bool all) {
#pragma unroll
    for (unsigned& word : words) word = all ? 0xffffffffu : 0u;
  }
  ATT_MEMBER void set(float& s, int n, int e, bool live) {
    if constexpr (spec::kHasScore) {
      words[n / 8] |= live ? 1u << (n % 8 * 4 + e) : 0u;
    } else {
      s = live ? s : -infinity();
    }
  }
  ATT_MEMBER bool is_live(int n, int e) const {
    return !spec::kHasScore || (words[n / 8] >> (n % 8 * 4 + e) & 1u) != 0;
  }
};

// A lane's elements where the rows are keys: of column block n, element e is key `key` + 8 (e / 2),
// query `query` + 8n + e % 2.
template <int kColumns>
struct ColumnElements {
  static constexpr int kWords = (kColumns + 63) / 64;
  int key, query;
  // Shared addresses of what is known of the queries from `query` on.
  unsigned references, deltas;

  // Bits of the elements that dropout keeps.
  ATT_MEMBER void drop(const Context& c, unsigned (&keep)[kWords]) const {
    if constexpr (spec::kHasDropout) {
      const unsigned drop_below = dropout_drop_below(c);
#pragma unroll
      for (int i = 0; i < kWords; ++i) keep[i] = 0;
#pragma unroll
      for (int block = 0; block < kColumns / 16; ++block) {
        const unsigned bits = column_keep_bits(c, query / 16 + block, key / 8, drop_below);
        keep[block / 4] |= place_keep_bits(bits, block % 4);
      }
    }
  }
  static ATT_MEMBER bool keeps(const unsigned (&keep)[kWords], int n, int e) {
    const int bit = placed_keep_bit(column_keep_bit(n % 2, e % 2, e / 2), n / 2 % 4);
    return !spec::kHasDropout || (keep[n / 8] >> bit & 1u) != 0;
  }

  // Products to P, whose slopes stay in s; with kKeepsProducts the products do, of dead elements
  // minus infinity. dV is made of `kept`: pairs of columns, those of element e / 2 of block n.
  template <typename Products, typename Keep>
  ATT_MEMBER void probabilities(const Context& c, Products& s, bool full,
                                const unsigned (&keep)[kWords], const Keep& kept) const {
    LiveBits<kColumns> live(full);
    if (!full && kHasRuns && runs_are_told(c)) {
      for_each(c, [&](int n, int e, int q, int k) {
        live.set(element(s, n, e), n, e, is_live_element<kHasRuns>(c, q, k));
      });
    } else if (!full) {
      for_each(c, [&](int n, int e, int q, int k) {
        live.set(element(s, n, e), n, e, is_live_element(c, q, k));
      });
    }
    if constexpr (kSharesReciprocals) to_logistic_cores<kColumns / 8>(c, s);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      float reference[2] = {};
      if constexpr (!plan::kSplitReferences) {
        load_shared_8(references + 32 * n, reference[0], reference[1]);
      }
      ScoreLine line[2] = {};
      if constexpr (kAddsLine) {
#pragma unroll
        for (int e = 0; e < 2; ++e) line[e] = score_line(c, query_at(c, n, e), key);
      }
      float value[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = query_at(c, n, e);
        float& x = element(s, n, e);
        const bool is_live = live.is_live(n, e);
        const Probability p =
            kAddsLine ? with_line(c, x, line[e % 2], e / 2 * 8, reference[e % 2], is_live)
                      : probability(c, x, reference[e % 2], q, key + e / 2 * 8, is_live);
        if constexpr (kKeepsProducts) {
          x = is_live ? x : -infinity();
        } else {
          x = p.slope;
        }
        value[e] = keeps(keep, n, e) ? p.value : 0.0f;
      }
      kept(n, 0, value[0], value[1]);
      kept(n, 1, value[2], value[3]);
    }
  }

  // Queries past q_len have an infinite reference; look-ups want them inside.
  ATT_MEMBER int query_at(const Context& c, int n, int e) const {
    return min_i32(query + 8 * n + e % 2, c.q_len - 1);
  }
  template <typename F>
  ATT_MEMBER void for_each(const Context& c, const F& f) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) f(n, e, query_at(c, n, e), key + e / 2 * 8);
    }
  }

  // dP to dS, kept the same way; `learned` gets what the score's own tensors learn from.
  template <typename Products, typename Keep, typename Learned>
  ATT_MEMBER void gradients(const Context& c, Products& slopes, Products& d,
                            const unsigned (&keep)[kWords], const Keep& kept,
                            Learned& learned) const {
    if constexpr (!Learned::kLearns) {
      make_gradients<false>(c, slopes, d, keep, kept, learned);
    } else {
      learned.template begin_tile<kColumns>(c, first_query());
      // A branch between the elements would keep them from being worked out together.
      if (learned.is_mixed()) {
        make_gradients<true>(c, slopes, d, keep, kept, learned);
        learned.template end_tile<kColumns>(c, first_query());
      } else {
        make_gradients<false>(c, slopes, d, keep, kept, learned);
      }
    }
  }

 private:
  template <bool kMixed, typename Products, typename Keep, typename Learned>
  ATT_MEMBER void make_gradients(const Context& c, Products& slopes, Products& d,
                                 const unsigned (&keep)[kWords], const Keep& kept,
                                 [[maybe_unused]] Learned& learned) const {
    const float scale = dropout_scale(c);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      float delta[2] = {};
      if constexpr (!plan::kSplitDeltas) load_shared_8(deltas + 32 * n, delta[0], delta[1]);
      float reference[2] = {};
      if constexpr (kKeepsProducts) load_shared_8(references + 32 * n, reference[0], reference[1]);
      float value[4];
      [[maybe_unused]] int query_of[4];
      [[maybe_unused]] float scaled[4], of_score[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = query_at(c, n, e), k = key + e / 2 * 8;
        const auto gradient = [&](float slope) {
          return score_gradient(slope, element(d, n, e), delta[e % 2], keeps(keep, n, e), scale);
        };
        const float kept_product = element(slopes, n, e);
        if constexpr (kKeepsProducts) {
          const Probability p =
              probability(c, kept_product, reference[e % 2], q, k, kept_product != -infinity());
          value[e] = gradient(p.slope);
          scaled[e] = kept_product * softmax_scale(c.params);
          of_score[e] = gradient(p.value);
        } else {
          value[e] = gradient(kept_product);
          scaled[e] = 0.0f;
          of_score[e] = value[e];
        }
        query_of[e] = q;
      }
      if constexpr (Learned::kLearns) {
        learned.template add<kColumns, kMixed>(c, first_query(), n, query_of, scaled, of_score);
      }
      kept(n, 0, value[0], value[1]);
      kept(n, 1, value[2], value[3]);
    }
  }

  // Of the tile.
  ATT_MEMBER int first_query() const { return query - lane_index() % 4 * 2; }
};

// The same where the rows are queries: [n][e] is query `query` + 8 (e / 2), key `key` + 8n + e % 2.
struct RowElements {
  int query;
  float reference[2], delta[2];

  ATT_MEMBER RowElements(const Context& c, int query, const float* references, const float* deltas)
      : query(query) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      reference[half] = references[query + 8 * half];
      delta[half] = deltas[query + 8 * half];
    }
  }
  // Of rows `query` and `query` + 8.
  ATT_MEMBER RowElements(int query, const float (&references)[2], const float (&deltas)[2])
      : query(query), reference{references[0], references[1]}, delta{deltas[0], deltas[1]} {}

  template <int kColumns, typename F>
  ATT_MEMBER void for_each(const Context& c, int key, const F& f) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        f(n, e, min_i32(query + e / 2 * 8, c.q_len - 1), key + 8 * n + e % 2);
      }
    }
  }

  struct NothingKept {
    ATT_MEMBER void operator()(int, int, float, float) const {}
  };
  // Products to P, whose slopes stay in s. `kept` gets P itself: pairs of keys, those of element
  // e / 2 of block n.
  template <int kColumns, typename Products, typename Keep = NothingKept>
  ATT_MEMBER void probabilities(const Context& c, Products& s, int key, bool full,
                                const Keep& kept = {}) const {
    LiveBits<kColumns> live(full);
    if (!full) {
      for_each<kColumns>(c, key, [&](int n, int e, int q, int k) {
        live.set(element(s, n, e), n, e, is_live_element(c, q, k));
      });
    }
    if constexpr (kSharesReciprocals) to_logistic_cores<kColumns / 8>(c, s);
    float value[2] = {};
    for_each<kColumns>(c, key, [&](int n, int e, int q, int k) {
      float& x = element(s, n, e);
      const Probability p = probability(c, x, reference[e / 2], q, k, live.is_live(n, e));
      x = p.slope;
      value[e % 2] = p.value;
      if (e % 2 == 1) kept(n, e / 2, value[0], value[1]);
    });
  }

  // `key`: of the tile's first column, a multiple of kColumns, 16 or a multiple of 32.
  template <int kColumns, typename Products>
  ATT_MEMBER void gradients(const Context& c, Products& slopes, Products& d, int key) const {
    const float scale = dropout_scale(c);
    unsigned drop_below = 0;
    if constexpr (spec::kHasDropout) drop_below = dropout_drop_below(c);
#pragma unroll
    for (int first = 0; first < kColumns / 8; first += 4) {
      unsigned words[4] = {};
      if constexpr (spec::kHasDropout) {
        dropout_words(c, query / 16, query % 8, key / 32 + first / 4, thread_index() % 4, words);
#pragma unroll
        for (unsigned& word : words) word = dropout_keep_bits(word, drop_below);
      }
#pragma unroll
      for (int n = first; n < first + 4 && n < kColumns / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int byte = e / 2 * 8 + n % 4 * 2 + e % 2;
          unsigned word = words[byte / 4];
          if constexpr (kColumns == 16) {  // either half of the 32 keys that a draw serves
            if (key / 16 % 2 != 0) word = words[byte / 4 + 1];
          }
          const bool keeps = (word >> (byte % 4 * 8 + 7) & 1u) != 0;
          float& d_s = element(d, n, e);
          d_s = score_gradient(element(slopes, n, e), d_s, delta[e / 2], keeps, scale);
        }
      }
    }
  }
};

}  // namespace att
