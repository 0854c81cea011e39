// Keys, queries and distances as mask() and score() see them in a tile whose loops are unrolled: a
// value that elements share, plus or minus a column (of a query: a row) that is a constant. What is
// done with them here leaves as much as possible to be computed once a row, or once for all
// elements of one distance, where the compiler, which sees only sums of integers, would do it for
// every element.
#pragma once

#include "templates/tile/head_support.cuh"

namespace att {

// value + column, or value - column. What is not defined below takes it as the int that it is.
template <bool kPlus>
struct AtColumn {
  int value, column;

  ATT_MEMBER operator int() const { return kPlus ? value + column : value - column; }
  ATT_MEMBER AtColumn operator+(int x) const { return {value + x, column}; }
  ATT_MEMBER AtColumn operator-(int x) const { return {value - x, column}; }
  ATT_MEMBER AtColumn<!kPlus> operator-() const { return {-value, column}; }
  // Modulo 2^n only the column's low bits count: columns 8 apart agree modulo 8. `bits` is 2^n - 1.
  ATT_MEMBER int operator&(int bits) const {
    const int low = column & bits;
    return (kPlus ? value + low : value - low) & bits;
  }
  ATT_MEMBER bool operator<(int x) const { return kPlus ? column < x - value : column > value - x; }
  ATT_MEMBER bool operator<=(int x) const {
    return kPlus ? column <= x - value : column >= value - x;
  }
  ATT_MEMBER bool operator>(int x) const { return !(*this <= x); }
  ATT_MEMBER bool operator>=(int x) const { return !(*this < x); }
  ATT_MEMBER bool operator==(int x) const { return column == (kPlus ? x - value : value - x); }
  ATT_MEMBER bool operator!=(int x) const { return !(*this == x); }
};

template <bool kPlus>
ATT_FN AtColumn<kPlus> operator+(int x, const AtColumn<kPlus>& a) {
  return a + x;
}
template <bool kPlus>
ATT_FN AtColumn<!kPlus> operator-(int x, const AtColumn<kPlus>& a) {
  return {x - a.value, a.column};
}
#define ATT_AT_COLUMN_COMPARE_(op, opposite)                 \
  template <bool kPlus>                                      \
  ATT_FN bool operator op(int x, const AtColumn<kPlus>& a) { \
    return a opposite x;                                     \
  }
ATT_AT_COLUMN_COMPARE_(<, >)
ATT_AT_COLUMN_COMPARE_(<=, >=)
ATT_AT_COLUMN_COMPARE_(>, <)
ATT_AT_COLUMN_COMPARE_(>=, <=)
ATT_AT_COLUMN_COMPARE_(==, ==)
ATT_AT_COLUMN_COMPARE_(!=, !=)
#undef ATT_AT_COLUMN_COMPARE_
// Of a key and a query that are as far apart as others, the same value and column.
template <bool kPlus>
ATT_FN AtColumn<kPlus> operator-(const AtColumn<kPlus>& a, const AtColumn<kPlus>& b) {
  return {a.value - b.value, a.column - b.column};
}
template <bool kPlus>
ATT_FN AtColumn<kPlus> operator-(const AtColumn<kPlus>& a, const AtColumn<!kPlus>& b) {
  return {a.value - b.value, a.column + b.column};
}
template <bool kA, bool kB>
ATT_FN int operator+(const AtColumn<kA>& a, const AtColumn<kB>& b) {
  return static_cast<int>(a) + static_cast<int>(b);
}
#define ATT_AT_COLUMN_TWO_(op)                                            \
  template <bool kA, bool kB>                                             \
  ATT_FN bool operator op(const AtColumn<kA>& a, const AtColumn<kB>& b) { \
    return a - b op 0;                                                    \
  }
ATT_AT_COLUMN_TWO_(<)
ATT_AT_COLUMN_TWO_(<=)
ATT_AT_COLUMN_TWO_(>)
ATT_AT_COLUMN_TWO_(>=)
ATT_AT_COLUMN_TWO_(==)
ATT_AT_COLUMN_TWO_(!=)
#undef ATT_AT_COLUMN_TWO_

// A key: `aligned`, a multiple of kAlignment, plus `lane` (0, 2, 4 or 6), plus a column 8j or 8j +
// 1 with lane + column < kKeys. kIsInside: it is below kv_len.
template <int kAlignment, int kKeys, bool kIsInside>
struct TileKey : AtColumn<true> {
  int aligned, lane;

  ATT_MEMBER TileKey(int aligned, int lane, int column)
      : AtColumn<true>{aligned + lane, column}, aligned(aligned), lane(lane) {}
  // lane + column passes no multiple of 8 that the column has not passed.
  ATT_MEMBER AtColumn<true> operator>>(int n) const {
    if (n >= 3 && 1 << n <= kAlignment) return {aligned >> n, column >> n};
    if (1 << n >= kKeys && kKeys <= kAlignment) return {aligned >> n, 0};
    return {(value + column) >> n, 0};
  }
  ATT_MEMBER AtColumn<true> operator&(int bits) const {
    if (bits >= 7 && bits < kAlignment) return {lane, column & bits};
    if (bits >= kKeys && kKeys <= kAlignment) return {(aligned & bits) + lane, column};
    return {AtColumn<true>::operator&(bits), 0};
  }
};

// ---- Look-ups by key: one address a row, the column in the instruction.

struct KeyIndex {
  int value, column;
  ATT_MEMBER operator int() const { return value + column; }
};
// A key inside the keys needs no clamping.
template <int kAlignment, int kKeys>
ATT_FN KeyIndex clamp_tail(const TileKey<kAlignment, kKeys, true>& key, int) {
  return {key.value, key.column};
}

ATT_FN TensorArg moved(const TensorArg& tensor, long long bytes) {
  TensorArg result = tensor;
  result.data = static_cast<const char*>(tensor.data) + bytes;
  return result;
}
ATT_FN int load_i32(const TensorArg& tensor, long long row, const KeyIndex& key) {
  return load_i32(moved(tensor, 4 * (row + key.value)), key.column);
}
ATT_FN float load_f32(const TensorArg& tensor, long long row, const KeyIndex& key) {
  return load_f32(moved(tensor, 4 * (row + key.value)), key.column);
}
ATT_FN bool load_bool(const TensorArg& tensor, long long row, const KeyIndex& key) {
  return load_bool(moved(tensor, row + key.value), key.column);
}

}  // namespace att
