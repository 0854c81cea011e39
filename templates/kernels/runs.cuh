// The pre-pass that works out the runs of a tensor: where the equal numbers around each position
// begin and end (generator/expr/runs.hpp). A CTA has a row of the tensor.
//
// A row's runs tell where each number is when no two of them have the same one: where numbers only
// rise, or only fall, or where there are few runs and no two are equal.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/block_ranges.cuh"
#include "templates/tile/head_support.cuh"
#include "templates/tile/launch_in_front.cuh"
#include "templates/work_items.h"

namespace att {

// A row's positions are told by a bit each of whether a run begins there, in shared memory. A row
// of more has no runs.
constexpr int kMostRunWords = 4096;
constexpr int kRunWarps = kRunThreads / 32;
// Runs of a row that are compared with one another, each with all others.
constexpr int kMostComparedRuns = kRunThreads;

struct RunTables {
  unsigned starts[kMostRunWords];
  int numbers[kMostComparedRuns];  // of the row's runs, in any order
  int runs;                        // that were counted
  int rises, falls, repeats;       // at some run's beginning; some number has two runs
};

ATT_FN int first_bit(unsigned bits) { return highest_bit(bits & (0u - bits)); }

// One row of the tensor, which begins `row` elements behind its data. Each warp has as many words
// of it as the others, one behind the other.
struct NumberRow {
  const TensorArg& numbers;
  long long row;
  int length;

  ATT_MEMBER int words() const { return tile_count(length, 32); }
  ATT_MEMBER int words_of_warp() const { return tile_count(words(), kRunWarps); }
  ATT_MEMBER int first_word() const { return warp_index() * words_of_warp(); }
  ATT_MEMBER int end_word() const { return min_i32(first_word() + words_of_warp(), words()); }
  ATT_MEMBER int number(int at) const { return load_i32(numbers, row + at); }

  // The bits of the warp's words, and whether numbers rise and fall.
  ATT_MEMBER void find_starts(RunTables& tables) const {
    bool rises = false, falls = false;
    const int end = end_word();
#pragma unroll 4
    for (int word = first_word(); word < end; ++word) {
      const int at = min_i32(word * 32 + lane_index(), length - 1);
      const int own = number(at), last = number(at > 0 ? at - 1 : 0);
      const bool is_position = word * 32 + lane_index() < length;
      rises = rises || own > last;
      falls = falls || own < last;
      const unsigned bits = ballot(is_position && (at == 0 || own != last));
      if (lane_index() == 0) tables.starts[word] = bits;
    }
    if (rises) tables.rises = 1;
    if (falls) tables.falls = 1;
  }

  // Whether no two runs have the same number; false where there are too many to tell.
  ATT_MEMBER bool are_different(RunTables& tables) const {
    const int lane = lane_index(), thread = thread_index();
#pragma unroll 1
    for (int word = first_word(); word < end_word(); ++word) {
      const unsigned bits = tables.starts[word];
      int before = 0;
      if (lane == 0) before = fetch_add_shared(&tables.runs, bit_count(bits));
      const int run = shuffle_from(before, 0) + bit_count(bits & ((1u << lane) - 1));
      if ((bits >> lane & 1) != 0 && run < kMostComparedRuns)
        tables.numbers[run] = number(word * 32 + lane);
    }
    sync_threads();
    const int runs = tables.runs;
    if (runs > kMostComparedRuns) return false;
    if (thread < runs) {
      bool repeats = false;
#pragma unroll 4
      for (int other = 0; other < runs; ++other)
        repeats = repeats || (other != thread && tables.numbers[other] == tables.numbers[thread]);
      if (repeats) tables.repeats = 1;
    }
    sync_threads();
    return tables.repeats == 0;
  }

  // The nearest beginning of a run before the warp's words, or behind them, which 32 words at a
  // time are asked for.
  ATT_MEMBER int start_before(const RunTables& tables) const {
#pragma unroll 1
    for (int end = first_word(); end > 0; end -= 32) {
      const int word = end - 32 + lane_index();
      const unsigned found = ballot(word >= 0 && tables.starts[max_i32(word, 0)] != 0);
      if (found == 0) continue;
      const int last = end - 32 + highest_bit(found);
      return last * 32 + highest_bit(tables.starts[last]);
    }
    return 0;
  }
  ATT_MEMBER int start_behind(const RunTables& tables) const {
#pragma unroll 1
    for (int first = end_word(); first < words(); first += 32) {
      const int word = first + lane_index();
      const unsigned found =
          ballot(word < words() && tables.starts[min_i32(word, words() - 1)] != 0);
      if (found == 0) continue;
      const int next = first + first_bit(found);
      return next * 32 + first_bit(tables.starts[next]);
    }
    return kRunsEnd;
  }

  ATT_MEMBER void store_runs(const RunTables& tables, int* run_begin, int* run_end) const {
    const int lane = lane_index();
    const unsigned up_to_lane = 0xffffffffu >> (31 - lane);
    int begin = start_before(tables);
#pragma unroll 1
    for (int word = first_word(); word < end_word(); ++word) {
      const unsigned bits = tables.starts[word], up_to = bits & up_to_lane;
      const int own = up_to != 0 ? word * 32 + highest_bit(up_to) : begin;
      if (word * 32 + lane < length)
        run_begin[row + word * 32 + lane] = own == 0 ? kRunsBegin : own;
      begin = bits != 0 ? word * 32 + highest_bit(bits) : begin;
    }
    int end = start_behind(tables);
#pragma unroll 1
    for (int word = end_word() - 1; word >= first_word(); --word) {
      const unsigned bits = tables.starts[word], above = bits & ~up_to_lane;
      if (word * 32 + lane < length)
        run_end[row + word * 32 + lane] = above != 0 ? word * 32 + first_bit(above) : end;
      end = bits != 0 ? word * 32 + first_bit(bits) : end;
    }
  }

  ATT_MEMBER void store_none(int* run_begin, int* run_end) const {
#pragma unroll 1
    for (int at = thread_index(); at < length; at += kRunThreads) {
      run_begin[row + at] = kNoRuns;
      run_end[row + at] = kRunsEnd;
    }
  }
};

ATT_FN void work_out_runs(const TensorArg& numbers, int row_number, int* run_begin, int* run_end,
                          RunTables& tables) {
  const int length = numbers.size[kNumbersDims - 1];
  const NumberRow row = {numbers, static_cast<long long>(row_number) * length, length};
  bool is_told = row.words() <= kMostRunWords;
  if (is_told) {
    if (thread_index() == 0) tables.runs = tables.rises = tables.falls = tables.repeats = 0;
    sync_threads();
    row.find_starts(tables);
    sync_threads();
    is_told = tables.rises == 0 || tables.falls == 0 || row.are_different(tables);
  }
  if (is_told) {
    row.store_runs(tables, run_begin, run_end);
  } else {
    row.store_none(run_begin, run_end);
  }
}

ATT_FN int number_rows(const ForwardParams& p) {
  int rows = 1;
  for (int i = 0; i + 1 < kNumbersDims; ++i) rows *= p.tensors[kNumbersSlot].size[i];
  return rows;
}

}  // namespace att

// The pre-pass of a mask by runs: its first CTAs work them out, the others make pairs of ranges.
ATT_KERNEL __launch_bounds__(att::kRunThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _ranges)(ATT_GRID_CONSTANT att::ForwardParams params) {
  __shared__ att::RunTables tables;
  att::begin_launch_in_front(params);
  const int rows = att::number_rows(params);
  const int cta = att::block_index();
  if (cta < rows) {
    const auto positions = [&](int slot) {
      return static_cast<int*>(const_cast<void*>(params.tensors[slot].data));
    };
    att::work_out_runs(params.tensors[att::kNumbersSlot], cta, positions(att::kRunBeginSlot),
                       positions(att::kRunEndSlot), tables);
  } else {
    att::make_range_pair(
        params, static_cast<long long>(cta - rows) * (att::kRunThreads / 32) + att::warp_index());
  }
}
