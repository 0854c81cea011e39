/* Attune's C interface. Opaque handles, error codes, no exception ever crosses it.
 * Every function is thread-safe unless it says otherwise; handles are freed by their destroy
 * function, null is fine there. */
#ifndef ATTUNE_ATTUNE_H_
#define ATTUNE_ATTUNE_H_

#include <stddef.h>
#include <stdint.h>

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
typedef struct att_kernel att_kernel;   /* loaded code for one spec and one shape bucket */

ATT_API const char* att_version(void);
/* The message of this thread's last failed call; valid until its next call. Never null. */
ATT_API const char* att_last_error(void);

typedef struct att_runtime_options {
  size_t struct_size; /* sizeof(att_runtime_options) */
  const char* device; /* "cuda:0", "cpu"; null: the current CUDA context's device, else cuda:0, else
                         the CPU */
  const char* cache_file; /* null: the user's default; "": none */
  int background;         /* 1: a first use does not wait for a compile while other code of the spec
                             is there; a thread compiles, and the better code takes its place */
} att_runtime_options;
ATT_API att_status att_runtime_create(const att_runtime_options* options, att_runtime** out);
ATT_API void att_runtime_destroy(att_runtime* runtime);
/* What it runs on: "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159". Valid as long as the
 * runtime. */
ATT_API const char* att_runtime_device(const att_runtime* runtime);
/* Reads the cache files that changed since, and gives every kernel for which they know a better
 * plan that plan's code: kernels at hand stay valid and launch it from then on. Compiles what has
 * no code; with `background` it returns at once and the thread does so. An error is the first
 * kernel's that could not be built; it and all others go on. */
ATT_API att_status att_runtime_refresh(att_runtime* runtime);
/* Returns when nothing is compiled in the background any more. */
ATT_API void att_runtime_wait(att_runtime* runtime);
/* JSON: device, compiler, cache files and their states, counters, and for each kernel its plan,
 * its code's compiler and which file answered, and why. Writes at most `size` bytes, the last one
 * zero, and returns how many the whole takes, that zero included; 0 when it failed. Off the hot
 * path. */
ATT_API size_t att_runtime_status(const att_runtime* runtime, char* buffer, size_t size);

/* Text of a YAML spec, or the path of one, or the name of one of the library's. */
ATT_API att_status att_spec_from_yaml(const char* yaml, att_spec** out);
ATT_API att_status att_spec_from_file(const char* path_or_name, att_spec** out);
ATT_API void att_spec_destroy(att_spec* spec);
typedef enum att_dtype { ATT_FP16 = 0, ATT_BF16 = 1, ATT_FP32 = 2, ATT_FP8_E4M3 = 3 } att_dtype;
typedef enum att_layout { ATT_BSHD = 0, ATT_BHSD = 1 } att_layout;
typedef struct att_spec_info {
  size_t struct_size; /* sizeof(att_spec_info), set by the caller */
  int dtype;          /* att_dtype, of q, k, v and o */
  int layout;         /* att_layout, of contiguous q, k, v and o */
  int head_dim_qk, head_dim_v;
  int scalar_count, tensor_count;                 /* slots */
  int softmax_scale_at_launch, dropout_at_launch; /* 1: att_forward_args brings it */
} att_spec_info;
ATT_API att_status att_spec_describe(const att_spec* spec, att_spec_info* out);
/* Position of a launch-time scalar or tensor in att_forward_args; negative: no such name. */
ATT_API int att_spec_scalar_slot(const att_spec* spec, const char* name);
ATT_API int att_spec_tensor_slot(const att_spec* spec, const char* name);

typedef struct att_shape { /* lengths 1 to 2^28, batch to 2^16, heads to 2^12 */
  int64_t batch, heads, kv_heads, q_len, kv_len;
} att_shape;

/* The best kernel known for the shape: tuned, else nearest, else the cost model's. Compiles at
 * first use (well under a second); later calls for the same spec and shape return the same kernel.
 * Where there is no compiler, code of the spec that a cache file has. */
ATT_API att_status att_kernel_get(att_runtime* runtime, const att_spec* spec,
                                  const att_shape* shape, att_kernel** out);
ATT_API void att_kernel_destroy(att_kernel* kernel);
/* Of the code that a launch uses at this moment. Valid as long as the kernel. */
ATT_API const char* att_kernel_plan(const att_kernel* kernel);
/* "measured", "nearest", "model", or "stand-in": code that is there while better code is not. */
ATT_API const char* att_kernel_source(const att_kernel* kernel);
/* Enough for whatever code the kernel may come to have. */
ATT_API size_t att_kernel_workspace_bytes(const att_kernel* kernel, const att_shape* shape);

typedef struct att_strides { /* in elements; the last dim is contiguous */
  int64_t batch, seq, head;
} att_strides;
typedef union att_scalar {
  int32_t i;
  float f;
} att_scalar;

typedef struct att_forward_args {
  size_t struct_size; /* sizeof(att_forward_args) */
  att_shape shape;
  const void *q, *k, *v;
  void* o;
  float* lse;      /* [batch, heads, q_len] or null */
  void* workspace; /* att_kernel_workspace_bytes, 16-byte aligned; null when 0 */
  att_strides q_strides, k_strides, v_strides,
      o_strides;       /* all zero: contiguous in the spec's layout */
  float softmax_scale; /* when the spec leaves it to the launch */
  float dropout;       /* likewise */
  uint64_t dropout_seed, dropout_offset;
  const att_scalar* scalars;  /* by slot; null when none */
  const void* const* tensors; /* by slot, device pointers, contiguous in the declared dims */
} att_forward_args;
/* Enqueues on `stream` (a CUstream, null: the default) of the current context: no allocation, no
 * synchronisation, capturable. */
ATT_API att_status att_forward(const att_kernel* kernel, const att_forward_args* args,
                               void* stream);

#ifdef __cplusplus
}
#endif
#endif /* ATTUNE_ATTUNE_H_ */
