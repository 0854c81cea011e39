// The pre-pass that works out the runs of a tensor: where the equal numbers around each position
// begin and end (generator/expr/runs.hpp). A CTA has a row of the tensor.
//
// A row's runs tell where each number is when no two of them have the same one: where numbers only
// rise, or only fall, or where there are few runs and no two are equal.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/tile/block_ranges.cuh"
#include "templates/tile/cta_scans.cuh"
#include "templates/tile/head_support.cuh"
#include "templates/tile/launch_in_front.cuh"
#include "templates/work_items.h"

namespace att {

static_assert(kRunThreads == kScanThreads);

// A row's positions are told by a bit each of whether a run begins there, in shared memory. A row
// of more has no runs.
constexpr int kMostRunWords = 4096;
constexpr int kWordsOfThread = kMostRunWords / kRunThreads;
// Runs of a row that are compared with one another, each with all others.
constexpr int kMostComparedRuns = kRunThreads;

struct RunTables {
  unsigned starts[kMostRunWords];
  // The nearest words with a bit before and behind a word; word 0 has one, kNoWord: none.
  unsigned short before[kMostRunWords], behind[kMostRunWords];
  int numbers[kMostComparedRuns];  // of the row's runs
  int rises, falls, repeats;       // at some run's beginning; some number has two runs
};
constexpr unsigned short kNoWord = 0xffff;

ATT_FN int first_bit(unsigned bits) { return highest_bit(bits & (0u - bits)); }

// One row of the tensor, which begins `row` elements behind its data.
struct NumberRow {
  const TensorArg& numbers;
  long long row;
  int length;

  ATT_MEMBER int words() const { return tile_count(length, 32); }
  ATT_MEMBER int number(int at) const { return load_i32(numbers, row + at); }

  // The bits of all words, and whether numbers rise and fall.
  ATT_MEMBER void find_starts(RunTables& tables) const {
    bool rises = false, falls = false;
#pragma unroll 4
    for (int word = warp_index(); word < words(); word += kRunThreads / 32) {
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

  // How many runs begin before the thread's words, and in all.
  ATT_MEMBER CtaScan count_runs(const RunTables& tables) const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kWordsOfThread; ++i) {
      const int word = thread_index() * kWordsOfThread + i;
      if (word < words()) count += bit_count(tables.starts[word]);
    }
    return scan_threads(count, 0, [&](int a, int b) { return a + b; });
  }

  ATT_MEMBER void link_words(RunTables& tables) const {
    const int first = thread_index() * kWordsOfThread;
    int least = kNoWord, most = -1;
#pragma unroll
    for (int i = 0; i < kWordsOfThread; ++i) {
      if (first + i >= words() || tables.starts[first + i] == 0) continue;
      least = min_i32(least, first + i);
      most = first + i;
    }
    int before = scan_threads(most, -1, [&](int a, int b) { return max_i32(a, b); }).before;
    int behind = scan_threads_behind(least, kNoWord, [&](int a, int b) { return min_i32(a, b); });
#pragma unroll
    for (int i = 0; i < kWordsOfThread; ++i) {
      const int word = first + i, back = first + kWordsOfThread - 1 - i;
      if (word < words()) {
        tables.before[word] = static_cast<unsigned short>(before);
        if (tables.starts[word] != 0) before = word;
      }
      if (back < words()) {
        tables.behind[back] = static_cast<unsigned short>(behind);
        if (tables.starts[back] != 0) behind = back;
      }
    }
  }

  ATT_MEMBER void compare_runs(RunTables& tables, const CtaScan& runs) const {
    const int thread = thread_index();
    int run = runs.before;
#pragma unroll 1
    for (int i = 0; i < kWordsOfThread; ++i) {
      const int word = thread * kWordsOfThread + i;
#pragma unroll 1
      for (unsigned bits = word < words() ? tables.starts[word] : 0; bits != 0; bits &= bits - 1)
        tables.numbers[run++] = number(word * 32 + first_bit(bits));
    }
    sync_threads();
    if (thread < runs.all) {
      bool repeats = false;
#pragma unroll 4
      for (int other = 0; other < runs.all; ++other)
        repeats = repeats || (other != thread && tables.numbers[other] == tables.numbers[thread]);
      if (repeats) tables.repeats = 1;
    }
    sync_threads();
  }

  ATT_MEMBER void store_runs(const RunTables& tables, int* run_begin, int* run_end) const {
    const unsigned up_to_lane = 0xffffffffu >> (31 - lane_index());
#pragma unroll 4
    for (int word = warp_index(); word < words(); word += kRunThreads / 32) {
      const int at = word * 32 + lane_index();
      const unsigned bits = tables.starts[word];
      const unsigned up_to = bits & up_to_lane, above = bits & ~up_to_lane;
      const int begin_word = up_to != 0 ? word : tables.before[word];
      const int end_word = above != 0 ? word : tables.behind[word];
      const int begin =
          begin_word * 32 + highest_bit(up_to != 0 ? up_to : tables.starts[begin_word]);
      if (at >= length) continue;
      run_begin[row + at] = begin == 0 ? kRunsBegin : begin;
      run_end[row + at] =
          end_word == kNoWord
              ? kRunsEnd
              : end_word * 32 + first_bit(above != 0 ? above : tables.starts[end_word]);
    }
  }

  ATT_MEMBER void store_none(int* run_begin, int* run_end) const {
#pragma unroll 4
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
  if (row.words() > kMostRunWords) return row.store_none(run_begin, run_end);
  if (thread_index() == 0) tables.rises = tables.falls = tables.repeats = 0;
  sync_threads();
  row.find_starts(tables);
  sync_threads();
  bool is_told = tables.rises == 0 || tables.falls == 0;
  if (!is_told) {
    const CtaScan runs = row.count_runs(tables);
    if (runs.all <= kMostComparedRuns) {
      row.compare_runs(tables, runs);
      is_told = tables.repeats == 0;
    }
  }
  if (!is_told) return row.store_none(run_begin, run_end);
  row.link_words(tables);
  sync_threads();
  row.store_runs(tables, run_begin, run_end);
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
