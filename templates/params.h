// The launch contract: one struct, read by the host runtime, by CUDA kernels and by CPU kernels.
// Plain data; every member has the same size and offset in each of them.
#pragma once

namespace att {

constexpr int kMaxScalars = 16;
constexpr int kMaxTensors = 8;
constexpr int kMaxTensorDims = 4;
// Elements of a tensor's last dim that share one (minimum, maximum) pair of the pre-pass.
constexpr int kRangeBlock = 64;

// A launch-time scalar, read as the type that the spec declares.
union ScalarValue {
  int as_int;
  float as_float;
};

// An auxiliary input, row-major and contiguous.
struct TensorArg {
  const void* data;    // int32, float32 or one-byte bool
  void* block_ranges;  // pre-pass output: [rows, ceil(last / kRangeBlock)] pairs (min, max) of 4
                       // bytes each; null when unused
  int size[kMaxTensorDims];  // unused dims are 1
};

// q [batch, q_len, heads, qk], k [batch, kv_len, kv_heads, qk], v [batch, kv_len, kv_heads, v],
// o [batch, q_len, heads, v] in whatever order the strides say; the last dim is contiguous and
// every stride a multiple of 16 bytes. lse [batch, heads, q_len] fp32, contiguous, natural log.
struct Strides {  // in elements
  long long batch, seq, head;
};
struct ForwardParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;              // may be null
  int* scheduler_counter;  // zero at launch; null when the plan has none
  Strides q_stride, k_stride, v_stride, o_stride;
  int batch, heads, kv_heads, q_len, kv_len;
  float softmax_scale;          // read only when the spec leaves it to the launch
  unsigned dropout_drop_below;  // of 256: an element is dropped when its random byte is below
  float dropout_keep_scale;     // 256 / (256 - dropout_drop_below)
  // With spec::kDropoutSeedOnDevice the seed is the address of both in device memory.
  unsigned long long dropout_seed, dropout_offset;
  ScalarValue scalars[kMaxScalars];
  TensorArg tensors[kMaxTensors];
};

// How far a K/V head of a backward pass is, where CTAs of others wait for that.
struct HeadCounters {
  int sums_added;    // key tiles that have added to d_q_sums
  int shares_taken;  // shares of these that somebody brings or has brought to rows of d_q,
  int shares_free;   // and those that are zero again
  int rows_taken;    // parts of its rows that somebody makes or has made,
  int rows_made;     // and those that are there
};

// What the kernels of a backward pass read besides. d_q, d_k and d_v are laid out as q, k and v by
// strides of their own, d_o as o; d_lse is laid out as lse.
struct BackwardParams : ForwardParams {
  const void* d_o;
  const float* d_lse;  // may be null
  void* d_q;
  void* d_k;
  void* d_v;
  Strides d_o_stride, d_q_stride, d_k_stride, d_v_stride;
  // Of the workspace, fp32; null where the plan has no such region.
  float* row_references;  // [batch, heads, q_len rounded up]: of the exponentials
  float* row_deltas;      // the same: rowsum(dO O) - dLSE
  float* d_q_sums;        // [batch, heads, q_len rounded up, qk], or of some heads at a time
  float* d_k_sums;        // [parts, batch, kv_heads, kv_len rounded up, qk]: of walks that are cut
  float* d_v_sums;        // the same with v columns
  float* learned_sums;    // [batch, heads, key tiles, numbers]: parts of what d_tensors will be
  HeadCounters* head_counters;  // [batch, kv_heads]
  int* sum_turns;  // [batch, heads, query tiles]: the key tiles before whose turn it is
  // Gradients asked for, fp32; null: not asked.
  float* d_tensors[kMaxTensors];  // of tensors declared `grad`, shaped as they are
  float* d_sink;                  // [batch, heads]
};

// Some queries of one sequence of a packed batch, or some of its keys.
struct SequenceItem {
  int sequence;  // negative: none
  int tile;
};

// Where the sequences of a packed batch lie, whose q_len and kv_len are those of all together; with
// pages kv_len is the most keys of one, cu_kv is null and used_kv is not.
// Offsets and lengths come from the device and may be anything: templates/sequence.h clamps them.
struct SequenceList {
  const int* cu_q;      // [batch + 1], the first query of each and the end of the last
  const int* cu_kv;     // the same of keys
  const int* used_q;    // [batch], how many queries of each there are; null: all
  const int* used_kv;   // the same of keys
  SequenceItem* items;  // of the workspace: what kernels do, the longest first
};

// Some keys of one sequence of a packed batch, for some of its queries. It says where these lie, so
// that who takes it need not ask for lengths and offsets first.
struct alignas(16) PieceItem {
  int sequence;        // negative: none
  int tile;            // of queries
  int part;            // of the heads of a K/V head,
  int heads_per_item;  // each of so many, or fewer
  int piece, pieces;
  int result;  // where the results of the item's pieces begin, of a K/V head's
  int q_len, kv_len, q_first, kv_first;  // of the sequence: templates/sequence.h
};

// CTAs that share an item's keys, of the workspace; templates/tile/pieces.cuh and
// sm90_key_results.cuh.
struct PieceLists {
  float* rows;       // what each of them found
  int* arrivals;     // of each item, each result, or its warpgroups; zero at launch, or marked
  PieceItem* items;  // of packed sequences: what kernels do
  int processors;    // of the GPU
};

struct PackedParams : BackwardParams {
  SequenceList sequences;  // read only when the spec is of packed sequences
  PieceLists pieces;       // read only by kernels that cut keys in pieces
};

// Where the keys of a paged cache lie, of which k_stride.batch and v_stride.batch are a page's: key
// i of sequence b is row i % page_size of page entries[b * pages_per_sequence + i / page_size].
struct PageTable {
  const int* entries;  // of the device, anything: templates/page_table.h
  int pages_per_sequence, page_size, pages;
  // i / page_size is i * multiplier >> shift for 0 <= i < 2^31.
  unsigned multiplier;
  int shift;
};

struct PagedParams : PackedParams {
  PageTable page_table;  // read only when the spec is of paged keys
  // Of the workspace, read only by backward kernels of packed sequences: as sequences.items, but
  // tiles of keys.
  SequenceItem* key_items;
};

// What elements of K or V are multiplied by where they are stored in fewer bits than Q: a number
// for each K/V head of each slice, which is what their batch stride steps over: a page, or a
// sequence that is not packed.
struct CacheScales {
  const float* values;    // of the device; null: all are 1
  long long slice, head;  // strides, in elements; 0: the same for all
};

// What the host fills and hands to every kernel: one that declares a base of it gets its bytes.
struct LaunchParams : PagedParams {
  CacheScales k_scales, v_scales;  // read only when the spec's K and V have a dtype of their own
};

}  // namespace att
