/* Attention with a mask of one's own from C: a spec as text, kernels at run time, no Python, no
 * nvcc. Causal attention over a sliding window of 256 keys that never forgets the first four. Exit
 * code: 0 right numbers, 1 wrong ones or a failure, 3 nothing here to run it on. */
#include <attune/attune.h>
#include <math.h>

#include "../common/device_memory.h"

static const char* kSpec =
    "attune: 1\n"
    "name: window_with_sinks\n"
    "dtype: bf16\n"
    "head_dim: 64\n"
    "scalars: {window: 256}\n"
    "mask: causal and (q_idx - kv_idx < window or kv_idx < 4)\n";

enum { kBatch = 2, kHeads = 4, kKvHeads = 2, kLength = 1000, kDim = 64, kLaunches = 20 };

static int is_live(int q, int k) { return k <= q && (q - k < 256 || k < 4); }

static void stop_unless(att_status status, const char* what) {
  if (status == ATT_OK) return;
  fprintf(stderr, "%s: %s", what, att_last_error());
  exit(status == ATT_UNAVAILABLE ? 3 : 1);
}

/* Uniform in [-1, 1), rounded to bf16. */
static unsigned short* random_bf16(size_t count) {
  static unsigned state = 12345;
  unsigned short* values = malloc(count * sizeof *values);
  if (values == NULL) abort();
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = to_bf16((float)(state >> 8) / 8388608.0f - 1.0f);
  }
  return values;
}

/* Row (b, h, q) by the definition, into `row`. Tensors are [batch, length, heads, dim]. */
static void naive_row(const unsigned short* q, const unsigned short* k, const unsigned short* v,
                      int b, int h, int q_idx, double* row) {
  const int h_kv = h / (kHeads / kKvHeads);
  double total = 0;
  for (int d = 0; d < kDim; ++d) row[d] = 0;
  for (int j = 0; j < kLength; ++j) {
    if (!is_live(q_idx, j)) continue;
    const unsigned short* query = q + (((size_t)b * kLength + q_idx) * kHeads + h) * kDim;
    const size_t key = (((size_t)b * kLength + j) * kKvHeads + h_kv) * kDim;
    double score = 0;
    for (int d = 0; d < kDim; ++d) score += from_bf16(query[d]) * from_bf16(k[key + d]);
    const double weight = exp(score / sqrt(kDim)); /* inputs are small: no maximum is needed */
    total += weight;
    for (int d = 0; d < kDim; ++d) row[d] += weight * from_bf16(v[key + d]);
  }
  for (int d = 0; d < kDim; ++d) row[d] /= total;
}

int main(void) {
  const device_memory memory = device_memory_open();
  att_runtime_options options = {.struct_size = sizeof options,
                                 .device = memory.is_gpu ? NULL : "cpu"};
  att_runtime* runtime = NULL;
  att_spec* spec = NULL;
  att_kernel* kernel = NULL;
  const att_shape shape = {kBatch, kHeads, kKvHeads, kLength, kLength};
  stop_unless(att_runtime_create(&options, &runtime), "no runtime");
  stop_unless(att_spec_from_yaml(kSpec, &spec), "bad spec");
  const double before = seconds_now();
  stop_unless(att_kernel_get(runtime, spec, &shape, &kernel), "no kernel");
  printf("device  %s\nplan    %s (%s), ready after %.0f ms\n", att_runtime_device(runtime),
         att_kernel_plan(kernel), att_kernel_source(kernel), 1e3 * (seconds_now() - before));

  const size_t q_count = (size_t)kBatch * kLength * kHeads * kDim;
  const size_t kv_count = (size_t)kBatch * kLength * kKvHeads * kDim;
  unsigned short* q = random_bf16(q_count);
  unsigned short* k = random_bf16(kv_count);
  unsigned short* v = random_bf16(kv_count);
  unsigned short* o = malloc(q_count * sizeof *o);
  const size_t workspace_bytes = att_kernel_workspace_bytes(kernel, &shape);
  void* device_q = device_copy_of(&memory, q, q_count * sizeof *q);
  void* device_k = device_copy_of(&memory, k, kv_count * sizeof *k);
  void* device_v = device_copy_of(&memory, v, kv_count * sizeof *v);
  void* device_o = device_copy_of(&memory, NULL, q_count * sizeof *o);
  void* workspace = workspace_bytes > 0 ? device_copy_of(&memory, NULL, workspace_bytes) : NULL;

  att_forward_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.shape = shape;
  args.q = device_q;
  args.k = device_k;
  args.v = device_v;
  args.o = device_o;
  args.workspace = workspace;
  stop_unless(att_forward(kernel, &args, NULL), "launch");
  device_wait(&memory);
  const double start = seconds_now();
  for (int i = 0; i < kLaunches; ++i) stop_unless(att_forward(kernel, &args, NULL), "launch");
  device_wait(&memory);
  printf("time    %.1f us a launch\n", 1e6 * (seconds_now() - start) / kLaunches);

  device_read(&memory, o, device_o, q_count * sizeof *o);
  double worst = 0;
  for (int i = 0; i < 32; ++i) {
    double row[kDim];
    const int b = i % kBatch, h = i % kHeads, q_idx = i * 997 % kLength;
    naive_row(q, k, v, b, h, q_idx, row);
    for (int d = 0; d < kDim; ++d) {
      const double out = from_bf16(o[(((size_t)b * kLength + q_idx) * kHeads + h) * kDim + d]);
      worst = fmax(worst, fabs(out - row[d]));
    }
  }
  /* bf16 has 8 bits: values below 1 are rounded by at most 2^-9, P and O once each. */
  printf("error   %.1e at most in 32 rows (%s)\n", worst, worst < 0.01 ? "right" : "WRONG");

  device_free(&memory, device_q);
  device_free(&memory, device_k);
  device_free(&memory, device_v);
  device_free(&memory, device_o);
  if (workspace != NULL) device_free(&memory, workspace);
  free(q);
  free(k);
  free(v);
  free(o);
  att_kernel_destroy(kernel);
  att_spec_destroy(spec);
  att_runtime_destroy(runtime);
  return worst < 0.01 ? 0 : 1;
}
