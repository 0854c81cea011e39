// How CTAs deal packed sequences' keys out among themselves, whose lengths only the device knows.
//
// The items of a K/V head lie on a line, one behind the other in the order of the sequences; an
// item is as long as its keys are units, and kItemUnits for its beginning and end. A CTA takes a
// stretch of the line, all of them equally long, and there are as many stretches as CTAs run at
// once: so all are busy until the end, whatever the lengths (FlashMLA's scheduler, DeepSeek, 2025).
// Every CTA adds the line up for itself, which takes less time than to wait for a launch that does:
// on an H200 it knows its first piece after 2.5 us (3.6 where there are more than 32 sequences)
// instead of 4.9.
//
// Where a stretch ends within an item, its keys are cut there. A stretch ends in two items at most,
// its own first and last; an item's pieces are those of stretches that follow one another.
//
// Where lengths are nearly the same, and equal parts of items are as many as there are CTAs, these
// take one each (templates/tile/equal_parts.cuh).
//
// Items of a sequence read the same keys. Where memory is no faster than their products a K/V head
// has several lines, so that CTAs beside one another are with the same keys at the same time, which
// come out of L2 for all but one of them: each line has every n-th of a sequence's items, and as
// many, so that a stretch of all lines is the same keys.
#pragma once

#include "templates/items.h"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/equal_parts.cuh"
#include "templates/tile/lines.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/work_items.h"

namespace att {

constexpr int kLeastCutUnits = 2;  // of an item on either side of a cut
static_assert(kLeastStretch >= kItemUnits + kLeastCutUnits, "a cut moves by one stretch at most");

// What packed sequences take of the line, some of them one after the other in each element.
constexpr int kMostChunks = 128;
struct LineSums {
  long long units[kMostChunks];
  int longest[kMostChunks];  // units of an item
};

struct StretchPiece {
  PieceOfItem piece;
  UnitShare units;
};

// How far a CTA is with its stretch, for who does not keep all of it in registers.
struct StretchPlace {
  long long begin, end, length, sequence_begin, at;
  int sequence;
};

// A stretch of a line, which all warps of a CTA walk alike, 32 sequences at a time, one
// a lane. Numbers of a piece stay within the room for results even where another thread changes
// lengths meanwhile.
struct Stretch {
  const PackedParams& p;
  const int number, count;  // which of how many
  const Line line;
  int of_chunk, chunks;      // sequences of a chunk
  bool is_measured = false;  // else begin, end and length are not known yet
  long long begin = 0, end = 0, length = 0;
  // The first of the sequences that lanes look at, and where it begins; the next item is the first
  // that ends behind `at`.
  int sequence;
  long long sequence_begin = 0, at = 0;

  ATT_MEMBER Stretch(const PackedParams& params, int which, int stretches, const Line& of)
      : p(params), number(which), count(stretches), line(of) {
    of_chunk = 32 * tile_count(p.batch, 32 * kMostChunks);
    chunks = tile_count(p.batch, of_chunk);
    sequence = chunks == 1 ? 0 : warp_index() * of_chunk;  // warps take the chunks in turn
  }

  ATT_MEMBER StretchPlace place_now() const {
    return {begin, end, length, sequence_begin, at, sequence};
  }
  // From here on a single warp may call next().
  ATT_MEMBER void go_on_from(const StretchPlace& from) {
    begin = from.begin;
    end = from.end;
    length = from.length;
    sequence_begin = from.sequence_begin;
    at = from.at;
    sequence = from.sequence;
    is_measured = true;
  }

  // The whole CTA calls it; false: the stretch has no other piece. The first call measures the
  // line, in `sums`, whose memory may be used when it returns. Every instruction comes from a cold
  // memory, so what looks at sequences stands here once.
  ATT_MEMBER bool next(LineSums& sums, StretchPiece& found) {
    long long units = 0;  // of the warp's chunk
    int longest = 0;
#pragma unroll 1
    for (;;) {
      if (!is_measured && sequence >= p.batch) place(sums);
      if (is_measured && (at >= end || sequence >= p.batch)) return false;
      const Dealt own = dealt(p, sequence + lane_index());
      const LanesOnLine lanes(units_on_line(own, line.count));
      if (!is_measured) {
        units += lanes.all();
        longest = max_i32(longest, static_cast<int>(most_of_lanes(own.units)));
        if (p.batch > 32) {
          const int chunk = sequence / of_chunk;
          sequence += 32;
          if (sequence % of_chunk != 0 && sequence < p.batch) continue;
          sums.units[chunk] = units;  // all lanes alike
          sums.longest[chunk] = longest;
          units = 0;
          longest = 0;
          sequence = (chunk + plan::kWarps) * of_chunk;
          continue;
        }
        place(units, longest);  // every warp has seen all sequences
        if constexpr (plan::kFillsProcessors) {
          const int most = units_of_part(own, line, length, longest, count);
          if (most > 0) return take_part(own, most, found);
        }
        if (at >= end) return false;
      }
      const int lane = lanes.at(at - sequence_begin);
      if (lane == 32) {
        sequence += 32;
        sequence_begin += lanes.all();
        continue;
      }
      const Dealt of = dealt_from(own, lane);
      const int width = units_on_line(of.units);
      const long long first_item = sequence_begin + lanes.before(lane), rest = at - first_item;
      const int which = rest < width ? 0 : static_cast<int>(quotient(rest, width));
      const long long of_item = first_item + static_cast<long long>(which) * width;
      at = of_item + width;
      const int first = units_before(begin - of_item, of.units);
      const int last = units_before(end - of_item, of.units);
      if (first >= last && (of.units > 0 || of_item < begin)) continue;
      found.units = {first, last, of.units};
      if (of.units == 0) found.units = units_of_none();
      int item = which;
      if constexpr (plan::kFillsProcessors) {
        item = item_of_line(which);
        if (item >= of.items) continue;  // another line has one more
      }
      found.piece = piece_of(of, sequence + lane, item, of_item);
      return true;
    }
  }

  // The CTA's part of an item, which is all that it has, where no part has more than `most` units.
  ATT_MEMBER bool take_part(const Dealt& own, int most, StretchPiece& found) {
    end = at;
    const LanesOnLine lanes(items_of_line(own, line.count) * equal_parts(own.units, most));
    const int lane = lanes.at(number);
    if (lane == 32) return false;
    const Dealt of = dealt_from(own, lane);
    const int parts = equal_parts(of.units, most);
    const int rest = number - static_cast<int>(lanes.before(lane));
    const int which = quotient(rest, parts), part = rest - which * parts;
    const int item = item_of_line(which);
    if (item >= of.items) return false;  // another line has one more
    const auto units_before = [&](int other) {
      const int each = quotient(of.units, parts);
      return other * each + min_i32(other, of.units - parts * each);
    };
    found.units = {units_before(part), units_before(part + 1), of.units};
    if (of.units == 0) found.units = units_of_none();
    found.piece = {};
    found.piece.item = made_item(of, lane, item);
    found.piece.pieces = parts;
    found.piece.piece = part;
    set_results(found.piece, number - part);
    return true;
  }

  // Where the stretch lies on a line of `all` units, whose longest item has `longest`: such that an
  // item has no more than plan::kPieces pieces, and none is cut where that makes stretches little
  // longer.
  ATT_MEMBER void place(long long all, int longest) {
    const int width = units_on_line(longest);
    int least = kLeastStretch;
    if constexpr (plan::kPieces > 1) least = max_i32(least, tile_count(width, plan::kPieces - 1));
    length = quotient(all + count - 1, count);
    if (length < least) length = least;
    const long long whole = quotient(length + width - 1, width) * width;
    if (whole - length <= length / kMostRounding) length = whole;
    if constexpr (plan::kFillsProcessors) {
      // Nor do stretches end in a second item where all items have the same length.
      const int parts = length < width ? quotient(width, static_cast<int>(length)) : 1;
      const int part = tile_count(width, parts);
      if (parts > 1 && part - length <= length / kMostRounding) length = part;
    }
    begin = number * length;
    end = begin + length < all ? begin + length : all;
    at = begin;
    is_measured = true;
  }

  // The same once all warps have measured their chunks, and among which sequences it begins.
  ATT_MEMBER void place(const LineSums& sums) {
    sync_threads();
    const int lane = lane_index();
    long long all = 0;
    int longest = 0;
#pragma unroll 1
    for (int i = lane; i < chunks; i += 32) {
      all += sums.units[i];
      longest = max_i32(longest, sums.longest[i]);
    }
    place(sum_of_lanes(all), static_cast<int>(most_of_lanes(longest)));
    sequence = p.batch;
    if (begin < end) {
#pragma unroll 1
      for (int first = 0; first < chunks; first += 32) {
        const LanesOnLine lanes(first + lane < chunks ? sums.units[first + lane] : 0);
        const int found = lanes.at(begin - sequence_begin);
        sequence = (first + found) * of_chunk;
        sequence_begin += found < 32 ? lanes.before(found) : lanes.all();
        if (found < 32) break;
      }
    }
    sync_threads();
  }

  // Units of an item before a cut, which lies so far behind the item's beginning.
  static ATT_MEMBER int units_before(long long cut, int units) {
    if (cut <= kItemUnits) return 0;
    if (cut >= units_on_line(units)) return units;
    const int before = static_cast<int>(cut) - kItemUnits;
    if constexpr (plan::kPieces == 1) return 2 * before <= units ? 0 : units;
    return before < kLeastCutUnits ? 0 : before > units - kLeastCutUnits ? units : before;
  }

  // The stretch's piece of item `which` of a sequence, which begins at `of_item`.
  ATT_MEMBER PieceOfItem piece_of(const Dealt& of, int b, int which, long long of_item) const {
    PieceOfItem own = {};
    own.item = made_item(of, b, which);
    // No cut lies a stretch or more behind its item's end, nor before its beginning.
    const int width = units_on_line(of.units);
    const int step = static_cast<int>(length < width ? length : width);
    int first = number, last = number;
    if (of_item < begin) {
      const int behind = static_cast<int>(begin - of_item);
      const int stretches = tile_count(behind, step);
      first -= stretches;
      if (units_before(behind - (stretches - 1) * step, of.units) == 0) ++first;
    }
    const long long item_end = of_item + width;
    if (item_end > end) {
      const int stretches = tile_count(static_cast<int>(item_end - end), step);
      last += stretches;
      if (units_before(end - of_item + (stretches - 1) * step, of.units) == of.units) --last;
    }
    first = max_i32(first, 0);
    own.pieces = min_i32(min_i32(last, count - 1) - first + 1, plan::kPieces);
    own.piece = min_i32(number - first, own.pieces - 1);
    set_results(own, first);
    own.goes_on = item_end < end;
    return own;
  }

  // Of an item whose first head has none. Where masks tell heads apart another one may have keys.
  static ATT_MEMBER UnitShare units_of_none() { return {0, spec::kHasMask ? 1 : 0, 1}; }

  // Of a sequence, the line's item number `which`.
  ATT_MEMBER int item_of_line(int which) const { return which * line.count + line.number; }

  ATT_MEMBER Item made_item(const Dealt& of, int b, int which) const {
    const int tile = of.parts == 1 ? which : which / of.parts;
    return item_of(p, of.sequence, of.heads_per_item, b, line.h_kv, which - tile * of.parts, tile);
  }
  // Where results of an item wait whose first piece stretch `first` has.
  ATT_MEMBER void set_results(PieceOfItem& own, int first) const {
    own.arrivals = (line.h_kv * line.count + line.number) * count + first;
    own.result = 2 * own.arrivals + own.piece;
    own.all_results = kMostPieces;
  }
};

}  // namespace att
