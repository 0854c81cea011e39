/* Attune's C interface. Opaque handles, error codes, no exception ever crosses it. Every function
 * is thread-safe unless it says otherwise; destroy functions free handles, and take null.
 *
 * A binary that was built against this header runs against every later library of the same major
 * version (docs/abi.md). A struct that begins with `struct_size` may grow: set it to sizeof the
 * struct and zero the rest. A shorter one of an older header has zeros beyond its end, a longer one
 * of a newer header must be zero there, and one that a function fills in gets as much as it has
 * room for. The other structs never change. */
#ifndef ATTUNE_ATTUNE_H_
#define ATTUNE_ATTUNE_H_

#include <stddef.h>
#include <stdint.h>

#define ATT_VERSION_MAJOR 0
#define ATT_VERSION_MINOR 2
#define ATT_VERSION_PATCH 0

#if defined(__GNUC__)
#define ATT_API __attribute__((visibility("default")))
#else
#define ATT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum att_status {
  ATT_OK = 0,
  ATT_FAILED = 1,      /* something that should work did not */
  ATT_BAD_INPUT = 2,   /* a spec, an argument or a pointer is wrong */
  ATT_UNSUPPORTED = 3, /* well-formed, but this device or family cannot do it */
  ATT_UNAVAILABLE = 4  /* no device, driver or compiler */
} att_status;

typedef struct att_runtime att_runtime; /* a device, its compilers and its caches */
typedef struct att_spec att_spec;       /* a validated spec */
typedef struct att_kernel att_kernel;   /* loaded code for one spec, pass and shape bucket */
typedef struct att_tuning att_tuning;   /* a search for the fastest kernel, under way or over */
typedef struct att_append_kernel att_append_kernel; /* code that writes new keys into a cache */

/* "major.minor.patch" of the library; ATT_VERSION_* are the header's. */
ATT_API const char* att_version(void);
/* The message of this thread's last failed call; valid until its next call. Never null. */
ATT_API const char* att_last_error(void);

/* ---- Runtimes */

typedef enum att_log_level { ATT_LOG_WARNING = 1 } att_log_level;
/* One line without its end: what was worked around, such as a cache file that cannot be used. One
 * at a time, on whatever thread, never after att_runtime_destroy. It must neither throw nor call
 * Attune with that runtime. */
typedef void (*att_log_function)(void* context, int level, const char* line);

typedef struct att_runtime_options {
  size_t struct_size; /* sizeof(att_runtime_options) */
  const char* device; /* "cuda:0", "cpu"; null: the current CUDA context's device, else cuda:0, else
                         the CPU */
  const char* cache_file; /* null: the user's default; "": none */
  int background;         /* 1: a first use does not wait for a compile while other code of the spec
                             is there; a thread compiles, and the better code takes its place */
  /* Since 0.2. */
  att_log_function log; /* null: warnings go to stderr */
  void* log_context;
  int64_t check; /* 1: every launch's offsets, lengths and page numbers are looked at before it, and
                    wrong ones are an error; 0: where the environment has ATTUNE_CHECK=1 */
} att_runtime_options;
ATT_API att_status att_runtime_create(const att_runtime_options* options, att_runtime** out);
/* In a process that was forked from the runtime's it does nothing, as its threads are not there. */
ATT_API void att_runtime_destroy(att_runtime* runtime);
/* What it runs on: "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159". Valid as long as the
 * runtime. */
ATT_API const char* att_runtime_device(const att_runtime* runtime);
/* Reads the cache files that changed since, and gives every kernel for which they know a better
 * plan that plan's code; kernels at hand stay valid and launch it from then on. Compiles what has
 * no code; with `background` the thread does so. An error is the first kernel's that could not be
 * built; all go on. */
ATT_API att_status att_runtime_refresh(att_runtime* runtime);
/* Returns when nothing is compiled in the background any more; in a forked process at once. */
ATT_API void att_runtime_wait(att_runtime* runtime);
/* JSON, off the hot path; docs/runtime.md has its keys. Writes at most `size` bytes, the last one
 * zero, and returns how many the whole takes, that zero included; 0 when it failed. */
ATT_API size_t att_runtime_status(const att_runtime* runtime, char* buffer, size_t size);

/* ---- Specs */

/* Text of a YAML spec, or the path of one, or the name of one of the library's. */
ATT_API att_status att_spec_from_yaml(const char* yaml, att_spec** out);
ATT_API att_status att_spec_from_file(const char* path_or_name, att_spec** out);
/* The same spec with `dropout: {p: ..., seed: device}`: launches name where seed and offset lie in
 * the device's memory, for replays of a CUDA graph. ATT_BAD_INPUT where the spec has no dropout. */
ATT_API att_status att_spec_with_device_seed(const att_spec* spec, att_spec** out);
ATT_API void att_spec_destroy(att_spec* spec);
typedef enum att_dtype {
  ATT_FP16 = 0,
  ATT_BF16 = 1,
  ATT_FP32 = 2,
  ATT_FP8_E4M3 = 3,
  ATT_INT32 = 16,
  ATT_BOOL = 17 /* one byte */
} att_dtype;
typedef enum att_layout {
  ATT_BSHD = 0,
  ATT_BHSD = 1,
  ATT_THD = 2,  /* sequences packed one behind the other: q [tokens, heads, d] and so on */
  ATT_PAGED = 3 /* q and o as ATT_THD; k and v in a cache: [pages, page_size, kv_heads, d] */
} att_layout;
typedef enum att_pass { ATT_PASS_FORWARD = 0, ATT_PASS_BACKWARD = 1 } att_pass;

/* Strings that a description holds are valid as long as the spec. */
typedef struct att_spec_info {
  size_t struct_size; /* sizeof(att_spec_info), set by the caller */
  int dtype;          /* att_dtype, of q and o, and of k and v unless kv_dtype is another */
  int layout;         /* att_layout, of contiguous q, k, v and o */
  int head_dim_qk, head_dim_v;
  int scalar_count, tensor_count;                 /* slots */
  int softmax_scale_at_launch, dropout_at_launch; /* 1: the arguments of a launch bring it */
  /* Since 0.2. */
  const char* name;
  const char* hash;     /* 32 hex digits: equal for specs that mean the same */
  double softmax_scale; /* 0 when it comes at launch */
  double dropout;       /* likewise; 0: none */
  int passes;           /* 1 << att_pass of each that the spec lists */
  int has_mask, has_score, has_sink;
  int deterministic; /* 1: results are the same to the bit at every launch */
  int64_t kv_dtype;  /* att_dtype, of k and v: `dtype`, unless the spec gives them their own */
  int64_t v_in_k;    /* 1: V is the first head_dim_v columns of K, and launches take k alone */
  int64_t dropout_seed_on_device; /* 1: launches take `dropout_state` */
  const char* yaml;               /* the text that makes the spec again */
} att_spec_info;
ATT_API att_status att_spec_describe(const att_spec* spec, att_spec_info* out);
/* Position of a launch-time scalar or tensor in the arguments; negative: no such name. */
ATT_API int att_spec_scalar_slot(const att_spec* spec, const char* name);
ATT_API int att_spec_tensor_slot(const att_spec* spec, const char* name);

typedef struct att_scalar_info {
  size_t struct_size; /* sizeof(att_scalar_info), set by the caller */
  const char* name;
  int dtype;       /* ATT_INT32, ATT_FP32; ATT_BOOL when constant */
  int is_constant; /* 1: the spec gives its value, the slot is not read at a launch */
  double value;    /* when constant */
} att_scalar_info;
typedef struct att_tensor_info {
  size_t struct_size; /* sizeof(att_tensor_info), set by the caller */
  const char* name;
  int dtype;        /* ATT_INT32, ATT_FP32, ATT_FP16, ATT_BF16, ATT_BOOL */
  int ndim;         /* 0 to 4; 0: a single element */
  int grad;         /* 1: a backward launch gives its gradient */
  const char* dims; /* canonical: "batch, kv_len", "heads, (q_len + 127) // 128" */
} att_tensor_info;
/* By slot, 0 to scalar_count - 1 and tensor_count - 1. */
ATT_API att_status att_spec_describe_scalar(const att_spec* spec, int slot, att_scalar_info* out);
ATT_API att_status att_spec_describe_tensor(const att_spec* spec, int slot, att_tensor_info* out);

/* ---- Kernels */

/* Lengths 1 to 2^28, batch to 2^16, heads to 2^12, heads a multiple of kv_heads. Zero as batch or
 * q_len is an empty batch, for which a launch succeeds and does nothing; kv_len may then be zero,
 * too. With queries kv_len = 0 is ATT_BAD_INPUT: no kernel runs for O = 0 and LSE = -inf.
 *
 * With ATT_THD batch is the number of sequences, and q_len and kv_len are the tokens of all of them
 * together; what each has is told at a launch, and may be none. With ATT_PAGED kv_len is the most
 * keys that one sequence may have. */
typedef struct att_shape {
  int64_t batch, heads, kv_heads, q_len, kv_len;
} att_shape;

/* The sizes, in elements, that the tensor of `slot` must have at `shape`: `ndim` of them, for which
 * `capacity` must be enough. */
ATT_API att_status att_spec_tensor_sizes(const att_spec* spec, int slot, const att_shape* shape,
                                         int64_t* sizes, int capacity);

/* The best kernel known for the shape: tuned, else nearest, else the cost model's; where there is
 * no compiler, code of the spec that a cache file has. Compiles at first use, well under a second;
 * a spec that keeps the compiler busy for 120 seconds is an error. Untuned shapes between which the
 * choice hardly changes share a kernel, so that a decode loop may ask at every step. */
ATT_API att_status att_kernel_get(att_runtime* runtime, const att_spec* spec,
                                  const att_shape* shape, att_kernel** out);
/* The same of an att_pass, whether the spec lists it or not: its `passes` are what is tuned.
 * ATT_UNSUPPORTED when no kernel of the device can do it. */
ATT_API att_status att_kernel_get_for_pass(att_runtime* runtime, const att_spec* spec,
                                           const att_shape* shape, int pass, att_kernel** out);
ATT_API void att_kernel_destroy(att_kernel* kernel);
/* Of the code that a launch uses at this moment. Valid as long as the kernel. */
ATT_API const char* att_kernel_plan(const att_kernel* kernel);
/* "measured" (of the shape, or of the one that stands for those which share the kernel), "nearest",
 * "model", or "stand-in": code that is there while better code is not. */
ATT_API const char* att_kernel_source(const att_kernel* kernel);
/* Device memory that a launch takes: enough for whatever code the kernel may come to have. SIZE_MAX
 * when the kernel is null or no launch can have the shape; att_last_error says why. */
ATT_API size_t att_kernel_workspace_bytes(const att_kernel* kernel, const att_shape* shape);

/* ---- Launches */

typedef struct att_strides { /* in elements; the last dim is contiguous */
  int64_t batch, seq, head;
} att_strides;
typedef union att_scalar {
  int32_t i;
  float f;
} att_scalar;
/* An auxiliary tensor as the caller has it, aligned to its element; what DLPack's DLTensor says.
 * Checked against the spec's declaration, so that no spec makes a kernel read beyond it. */
typedef struct att_tensor {
  const void* data;       /* of the device */
  const int64_t* sizes;   /* ndim of them, in elements; host memory, as is `strides` */
  const int64_t* strides; /* likewise; null: contiguous, row-major, which it must be */
  int32_t dtype;          /* att_dtype */
  int32_t ndim;
} att_tensor;
/* Tells what the tensors of a kernel's launches are like, where they decide the mask. The kernel
 * is one of `runtime`; `tensors` are the spec's, by slot, of the sizes that they have at `shape`,
 * in the HOST's memory; read now, not kept. A spec that was tuned on several kinds of tensors has a
 * plan for each; the kernel takes that of the kind whose live tiles are the nearest, as
 * att_runtime_refresh would: on this thread, or in the background. Milliseconds: once for data of a
 * kind, not for every launch. */
ATT_API att_status att_runtime_tell_tensors(att_runtime* runtime, att_kernel* kernel,
                                            const att_shape* shape, const att_tensor* tensors,
                                            int tensor_count);
/* The same of a host that knows the shares: of the tiles of 128 queries by 128 keys, those that
 * have a live element and those that have no dead one, 0 <= full_share <= live_share <= 1; what
 * att_tune_result says of its launch. Costs a comparison where they are those told before. */
ATT_API att_status att_runtime_tell_shares(att_runtime* runtime, att_kernel* kernel,
                                           double live_share, double full_share);
/* The same of the lengths of sequences, with ATT_THD and ATT_PAGED: `kv_lengths` are the keys of
 * each of shape->batch sequences, in the HOST's memory, page_size as at a launch, 0 with ATT_THD.
 * They count coarsely (docs/tuning.md), so they may be told at every step: that costs a pass over
 * them, and only seldom another choice. What is told of tensors stays. */
ATT_API att_status att_runtime_tell_lengths(att_runtime* runtime, att_kernel* kernel,
                                            const att_shape* shape, const int32_t* kv_lengths,
                                            int64_t page_size);

typedef struct att_forward_args {
  size_t struct_size; /* sizeof(att_forward_args) */
  att_shape shape;
  const void *q, *k, *v; /* 16-byte aligned, as are o and all strides in bytes. With a spec that has
                            v_in_k v is null and v_strides are zero, or both are those of k. */
  void* o;
  float* lse;      /* [batch, heads, q_len], with ATT_THD and ATT_PAGED [heads, q_len], contiguous,
                      base e; or null */
  void* workspace; /* att_kernel_workspace_bytes, 16-byte aligned; null when 0 */
  att_strides q_strides, k_strides, v_strides,
      o_strides;       /* all zero: contiguous in the spec's layout */
  float softmax_scale; /* when the spec leaves it to the launch; above 0 */
  float dropout;       /* likewise */
  uint64_t dropout_seed, dropout_offset;
  const att_scalar* scalars;  /* by slot; null when none */
  const void* const* tensors; /* by slot, device pointers, contiguous in the declared dims, whose
                                 sizes are taken on trust; null with `tensor_views` */
  /* Since 0.2. */
  const att_tensor* tensor_views; /* by slot, with their sizes; null when none */
  int tensor_view_count;          /* tensor_count of the spec */
  size_t workspace_bytes;         /* of `workspace`; 0: taken on trust */
  /* With ATT_THD and ATT_PAGED, of the device; else null. Sequence i has the tokens from cu[i] up
   * to cu[i + 1], and of these the first used[i]. Rows of o and lse that are no query's are left as
   * they are. Kernels clamp what they find: offsets that descend or lie outside give numbers
   * without meaning, never an access outside the tensors. */
  const int32_t *cu_q, *cu_kv;     /* [batch + 1], ascending from 0; with ATT_PAGED no cu_kv */
  const int32_t *used_q, *used_kv; /* [batch]; null: all of them; with ATT_PAGED used_kv is the
                                      number of keys of each, at most kv_len, and not null */
  /* With ATT_PAGED; else null and 0. Key i of sequence b is row i % page_size of the page whose
   * number is page_table[b * pages_per_sequence + i / page_size]; what lies behind used_kv[b] is
   * not read, of the table and of the cache. `batch` of k_strides and v_strides is the stride of a
   * page, and v may be a part of k. A number outside [0, pages) is no page: its keys are zeros. */
  const int32_t* page_table;  /* [batch, pages_per_sequence], of the device */
  int64_t pages_per_sequence; /* kv_len is at most this many times page_size */
  int64_t page_size;          /* rows of a page, from 1 */
  int64_t pages;              /* of the cache that k and v point to */
  /* With a spec that has a kv_dtype; else null and 0. What elements of k and v are multiplied by,
   * of the device: those of K/V head h in page i by k_scales[i * k_scale_page_stride + h *
   * k_scale_head_stride]. Without pages i is the sequence, with ATT_THD 0. Null: by 1. */
  const float *k_scales, *v_scales;
  int64_t k_scale_page_stride, k_scale_head_stride; /* in elements; 0: the same for all */
  int64_t v_scale_page_stride, v_scale_head_stride;
  /* With a spec whose dropout has `seed: device`; else null: seed and offset, of the device, read
   * by kernels in place of dropout_seed and dropout_offset. 8-byte aligned. */
  const uint64_t* dropout_state;
} att_forward_args;
/* Enqueues on `stream` (a CUstream, null: the default) of the current context: no allocation, no
 * synchronisation, capturable. None of o, lse and workspace may lie where anything else of the
 * launch does (docs/abi.md). A workspace of which the kernel needs no bytes is not looked at.
 *
 * This and the other launches of a runtime with `check` wait for the stream and read what `cu_q` to
 * `page_table` point to: to look for a mistake, not for production. Where one of these is wrong, as
 * docs/runtime.md lists it, it is ATT_BAD_INPUT and nothing is launched. ATT_UNSUPPORTED while the
 * stream is being captured. */
ATT_API att_status att_forward(const att_kernel* kernel, const att_forward_args* args,
                               void* stream);

/* What the forward launch was given and wrote, the gradient of what it wrote, and where the
 * gradients of what it was given go: each is written whole, nothing is added to what is there. With
 * ATT_THD rows that are no query's or no key's are left as they are. None of the gradients and the
 * workspace may lie where anything else of the launch does (docs/abi.md). */
typedef struct att_backward_args {
  size_t struct_size; /* sizeof(att_backward_args) */
  att_shape shape;
  const void *q, *k, *v, *o; /* 16-byte aligned, as are the gradients and all strides in bytes */
  const float* lse;          /* [batch, heads, q_len], with ATT_THD [heads, q_len], contiguous */
  const void* d_o;           /* shaped as o */
  const float* d_lse;        /* shaped as lse; null: lse was not used */
  void *d_q, *d_k, *d_v;     /* shaped as q, k and v, in the spec's dtype */
  void* workspace;           /* att_kernel_workspace_bytes, 16-byte aligned; null when 0 */
  size_t workspace_bytes;    /* of `workspace`; 0: taken on trust */
  att_strides q_strides, k_strides, v_strides, o_strides; /* all zero: contiguous */
  att_strides d_o_strides, d_q_strides, d_k_strides, d_v_strides;
  float softmax_scale; /* this and all below as the forward launch had it */
  float dropout;
  uint64_t dropout_seed, dropout_offset;
  const att_scalar* scalars;      /* by slot; null when none */
  const att_tensor* tensor_views; /* by slot, with their sizes; null when none */
  int tensor_view_count;          /* tensor_count of the spec */
  int d_tensor_count;             /* likewise; 0 when `d_tensors` is null */
  float* const* d_tensors;        /* by slot, contiguous in the declared dims; a null entry is not
                                     computed, and is all that a tensor without `grad` may have */
  float* d_sink;                  /* [batch, heads], of the sink's logit; null: not computed */
  /* Since 0.2. As the forward launch had them: with ATT_THD, of the device; else null. */
  const int32_t *cu_q, *cu_kv;     /* [batch + 1] */
  const int32_t *used_q, *used_kv; /* [batch]; null: all of them */
  const uint64_t* dropout_state;   /* the same numbers; null where the spec takes none */
} att_backward_args;
/* Enqueues as att_forward does; `kernel` is of att_kernel_get_for_pass(ATT_PASS_BACKWARD). */
ATT_API att_status att_backward(const att_kernel* kernel, const att_backward_args* args,
                                void* stream);

/* ---- Rows of no sequence. Since 0.2 */

/* A tensor [outer, rows, inner], `rows` being those of tokens, of which launches with ATT_THD and
 * ATT_PAGED leave rows alone that no sequence has: O, LSE (outer: heads, inner: 1), gradients. */
typedef struct att_untouched_args {
  size_t struct_size;         /* sizeof(att_untouched_args) */
  void* tensor;               /* of the device, contiguous, 4-byte aligned */
  int64_t outer, rows, inner; /* inner: a row's words of four bytes */
  const int32_t* cu; /* of the device, [sequences + 1], as the launch has them; null: all rows
                        are filled, as they must be where used_q or used_kv is given */
  int32_t sequences;
  uint32_t word; /* what is written: 0; of LSE -inf, 0xff800000 */
} att_untouched_args;
/* Enqueues, in front of the launch, on the device of `kernel`, what fills the rows before cu[0] and
 * from cu[sequences] on, or all rows where the driver takes no kernel for that, hence in front. As
 * with att_forward nothing is waited for; the first call on a device loads code. */
ATT_API att_status att_fill_untouched(const att_kernel* kernel, const att_untouched_args* args,
                                      void* stream);

/* ---- New keys and values into a cache. Since 0.2 */

/* Which elements of a head turn together by the token's position (rotary position embedding). */
typedef enum att_rope {
  ATT_ROPE_NONE = 0,       /* none: k and v are copied */
  ATT_ROPE_HALF = 1,       /* i and i + rotary_dim / 2: GPT-NeoX, Llama */
  ATT_ROPE_INTERLEAVED = 2 /* 2 i and 2 i + 1: GPT-J */
} att_rope;

typedef struct att_append_options {
  size_t struct_size;          /* sizeof(att_append_options) */
  int dtype;                   /* att_dtype of q, k and v: ATT_FP16, ATT_BF16 or ATT_FP32 */
  int cache_dtype;             /* of the cache: the same, or ATT_FP8_E4M3 */
  int head_dim_qk, head_dim_v; /* as of a spec */
  int rope;                    /* att_rope */
  int rotary_dim;              /* an even number: the first so many elements turn, the
                                  others are copied; 0: all turn */
  double rope_base;   /* at position p pair i turns by p * rope_base^(-2 i / rotary_dim) over
                         rope_factor, in radians; 0: 10000 */
  double rope_factor; /* linear scaling of positions; 0: 1 */
} att_append_options;
/* Compiles at first use of a dtype, head dims and kind of rotation; base and factor may vary. */
ATT_API att_status att_append_kernel_get(att_runtime* runtime, const att_append_options* options,
                                         att_append_kernel** out);
ATT_API void att_append_kernel_destroy(att_append_kernel* kernel);

/* New tokens of some sequences, packed as with ATT_THD, whatever the cache's layout. What has the
 * name of a member of att_forward_args is what that launch is given behind this one; k and v are
 * the new tokens' own, and k_cache and v_cache that launch's k and v. A sequence's new tokens are
 * its last: used_kv counts them too, and token i of n is its key used_kv[b] - n + i. Rows go where
 * att_forward reads them: none to a page number outside [0, pages), none to a key below 0, and
 * nothing outside of the cache, whatever stands in device memory. */
typedef struct att_append_args {
  size_t struct_size;      /* sizeof(att_append_args) */
  int layout;              /* att_layout of the cache */
  att_shape shape;         /* as of att_forward_args: q_len is how many tokens q, k and v have room
                              for; kv_len with ATT_THD rows of the cache, else the most keys that a
                              sequence may have */
  const void *q, *k, *v;   /* [q_len, heads or kv_heads, dim] by strides; 16-byte aligned, as are
                              all below and all strides in bytes. q and v may be null: left out */
  void* q_out;             /* q turned; may be q. Null when q is */
  void *k_cache, *v_cache; /* v_cache is null when v is */
  att_strides q_strides, k_strides, v_strides; /* `batch` is never stepped; all zero: contiguous */
  att_strides q_out_strides; /* likewise; those of q, or all zero, where q_out is q */
  att_strides k_cache_strides, v_cache_strides; /* all zero: contiguous in `layout` */
  /* Of the device. */
  const int32_t* cu_q;      /* [batch + 1], ascending from 0 */
  const int32_t* used_q;    /* [batch]; null: all tokens are there */
  const int32_t* cu_kv;     /* [batch + 1], with ATT_THD; else null */
  const int32_t* used_kv;   /* [batch]; null, not with ATT_PAGED: all keys that there is room for */
  const int32_t* positions; /* [q_len]: by which tokens turn, as those of a tree of drafts do, of
                               which several have one; null: by where their keys go */
  const int32_t* page_table;  /* this and the next three with ATT_PAGED; else null and 0 */
  int64_t pages_per_sequence; /* kv_len is at most this many times page_size */
  int64_t page_size, pages;
  /* In place of base and factor: cosine and sine by which pair i turns at position p, at
   * [p * table_stride + i], of the device, for scalings of every kind. Both or none. */
  const float *cosines, *sines;
  int64_t table_positions; /* how many there are; a position beyond takes the nearest there is */
  int64_t table_stride;    /* in elements; 0: rotary_dim / 2 */
  /* With a cache_dtype of fp8; else null and 0: those of att_forward_args, of a page's heads. What
   * is written is divided by them, rounded to nearest even, and at most 448 either way. */
  const float *k_scales, *v_scales;
  int64_t k_scale_page_stride, k_scale_head_stride; /* in elements; 0: the same for all */
  int64_t v_scale_page_stride, v_scale_head_stride;
} att_append_args;
/* Enqueues as att_forward does. q_out, where it is not q, and the cache must not overlap what is
 * read. Only rows of new tokens are written. */
ATT_API att_status att_append(const att_append_kernel* kernel, const att_append_args* args,
                              void* stream);

/* ---- Tuning */

/* What a search does now. Candidates are plans. */
typedef struct att_tune_progress {
  size_t struct_size;    /* of the library's */
  int done, total;       /* candidates; the total grows while the search finds more to try */
  double seconds;        /* since att_tune */
  double best_us;        /* 0: none is measured yet */
  const char* best_plan; /* valid during the call; "" likewise */
} att_tune_progress;
/* Called at every step on the thread that tunes, one call at a time; 0: go on. It must neither
 * throw nor call Attune with the runtime or the tuning. */
typedef int (*att_tune_function)(void* context, const att_tune_progress* progress);

typedef struct att_tune_options {
  size_t struct_size;         /* sizeof(att_tune_options) */
  double budget_ms;           /* 0: until the search ends by itself, minutes on a GPU */
  int background;             /* 1: returns once the data are copied; a thread tunes */
  int max_candidates;         /* 0: as many as the search asks for */
  int compile_threads;        /* 0: all cores that the process may use, in the background one */
  const char* command;        /* path of the `attune` command; null: where docs/runtime.md says */
  att_tune_function progress; /* or null */
  void* progress_context;
} att_tune_options;

typedef enum att_tune_state {
  ATT_TUNE_RUNNING = 0,
  ATT_TUNE_DONE = 1,    /* the search ended by itself */
  ATT_TUNE_STOPPED = 2, /* by the budget, the callback, att_tuning_cancel or the runtime's end; what
                           was measured is remembered, and the next search goes on from there */
  ATT_TUNE_FAILED = 3
} att_tune_state;

typedef struct att_tune_result {
  size_t struct_size;     /* sizeof(att_tune_result), set by the caller */
  int state;              /* att_tune_state */
  int measured, rejected; /* candidates of this search; rejected: failed or wrong */
  int from_cache;         /* measured by an earlier one on the same data */
  double seconds;
  double best_us, before_us;     /* medians, of the plan and of the one before; 0: not measured */
  double live_share, full_share; /* for att_runtime_tell_shares; negative: no tensor decides */
  const char *plan, *compiler;   /* valid as long as the tuning; "" while there is none */
} att_tune_result;

/* Searches the fastest plan for a launch on the host's own data, and remembers it in the runtime's
 * cache file, with the shares of live and of full tiles that it was measured at. From then on
 * att_kernel_get of the shape gives it (with the runtime's `background`, once att_runtime_wait
 * returns), and so does every later runtime that is told such shares or was tuned on no other data.
 * Kernels at hand take it over where they stand for the shape.
 *
 * `args` are those of att_forward, checked as there. All that a launch reads is copied first,
 * through main memory: on a GPU after all work of the context is done, so not while a stream of it
 * is captured. With `background` the host may overwrite and free all of it when att_tune returns.
 * What a launch writes is never touched. Candidates are compiled and launched by processes of their
 * own (`attune worker`), so one that hangs or crashes costs itself; on a GPU they take memory for
 * their copies beside the host's. Each is verified before it is timed (docs/tuning.md).
 *
 * The budget counts from the call and is looked at between steps, of which the longest, opening the
 * device and asking the oracle, takes seconds. It is no error when it ends before anything was
 * measured.
 *
 * `out`, which may be null, gets the tuning; with an error null. Without `background` it is over.
 * ATT_BAD_INPUT: what a launch would not take, an empty shape, packed offsets that descend, or a
 * runtime without a cache file; ATT_UNAVAILABLE: no compiler, or no `attune` command of this build.
 */
ATT_API att_status att_tune(att_runtime* runtime, const att_spec* spec,
                            const att_forward_args* args, const att_tune_options* options,
                            att_tuning** out);
/* The same of att_backward. o and lse are not read: they are made anew by the forward kernel that
 * is known as the best. All gradients that the spec has are asked for. */
ATT_API att_status att_tune_backward(att_runtime* runtime, const att_spec* spec,
                                     const att_backward_args* args, const att_tune_options* options,
                                     att_tuning** out);
/* Returns when it is over, with its error where it failed. */
ATT_API att_status att_tuning_wait(att_tuning* tuning);
/* Asks it to stop and returns at once. */
ATT_API void att_tuning_cancel(att_tuning* tuning);
/* Of what is known so far. */
ATT_API att_status att_tuning_result(const att_tuning* tuning, att_tune_result* out);
/* Cancels, and waits. May come after att_runtime_destroy, which ends the runtime's tunings. */
ATT_API void att_tuning_destroy(att_tuning* tuning);

#ifdef __cplusplus
}
#endif
#endif /* ATTUNE_ATTUNE_H_ */
