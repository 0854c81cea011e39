// The model's operations on a GPU, as dense.hpp describes them: what cuda_dense.cpp launches. NVRTC
// compiles this file at run time; it includes nothing.
//
// Blocks have 256 threads unless a kernel says otherwise. Every sum is taken in one order, so that
// the same launch gives the same bits each time.

static constexpr int kThreads = 256;
static constexpr int kWarp = 32;

// Loops over `count` elements, whatever the grid.
#define FOR_EACH(i, count)                                                            \
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (size_t)(count); \
       i += (size_t)gridDim.x * blockDim.x)

// A warp's row, and its lane in it.
__device__ size_t row_of_warp() {
  return blockIdx.x * (size_t)(kThreads / kWarp) + threadIdx.x / kWarp;
}
__device__ size_t lane() { return threadIdx.x % kWarp; }

__device__ float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFF, value, step);
  }
  return value;
}
__device__ float warp_maximum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, step));
  }
  return value;
}

// ---- Elements

extern "C" __global__ void add(size_t count, const float* x, float* y) {
  FOR_EACH(i, count) y[i] += x[i];
}

extern "C" __global__ void gelu(size_t count, const float* x, float* y) {
  FOR_EACH(i, count) y[i] = x[i] * (1 + erff(x[i] * 0.70710678f)) / 2;
}

// d_x may be d_y.
extern "C" __global__ void gelu_gradient(size_t count, const float* x, const float* d_y,
                                         float* d_x) {
  FOR_EACH(i, count) {
    const float below = (1 + erff(x[i] * 0.70710678f)) / 2;
    d_x[i] = d_y[i] * (below + x[i] * 0.39894228f * expf(-x[i] * x[i] / 2));
  }
}

// To the nearest, ties to even; a bf16 is the upper half of a float.
extern "C" __global__ void to_bf16(size_t count, const float* x, unsigned short* y) {
  FOR_EACH(i, count) {
    const unsigned bits = __float_as_uint(x[i]);
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    const unsigned rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    y[i] = (unsigned short)(is_nan ? bits >> 16 | 0x40 : rounded);
  }
}

extern "C" __global__ void from_bf16(size_t count, const unsigned short* x, float* y) {
  FOR_EACH(i, count) y[i] = __uint_as_float((unsigned)x[i] << 16);
}

// `kept` is 1 minus the rate times the decay.
extern "C" __global__ void adamw(size_t count, float rate, float kept, float beta1, float beta2,
                                 float unbias1, float unbias2, float epsilon, const float* gradient,
                                 float* parameters, float* first_moment, float* second_moment) {
  FOR_EACH(i, count) {
    const float mean = beta1 * first_moment[i] + (1 - beta1) * gradient[i];
    const float square = beta2 * second_moment[i] + (1 - beta2) * gradient[i] * gradient[i];
    first_moment[i] = mean;
    second_moment[i] = square;
    parameters[i] =
        kept * parameters[i] - rate * (mean * unbias1) / (sqrtf(square * unbias2) + epsilon);
  }
}

// out[i] = the sum over `parts` of part[p, i].
extern "C" __global__ void sum_parts(size_t count, size_t parts, const float* part, float* out) {
  FOR_EACH(i, count) {
    float sum = 0;
    for (size_t p = 0; p < parts; ++p) sum += part[p * count + i];
    out[i] = sum;
  }
}

// ---- Rows, of a warp each

extern "C" __global__ void rms_norm(size_t rows, size_t columns, float epsilon, const float* x,
                                    const float* gain, float* inverse, float* y) {
  const size_t i = row_of_warp();
  if (i >= rows) return;
  const float* row = x + i * columns;
  float sum = 0;
  for (size_t j = lane(); j < columns; j += kWarp) sum += row[j] * row[j];
  const float scale = 1 / sqrtf(warp_sum(sum) / (float)columns + epsilon);
  if (lane() == 0) inverse[i] = scale;
  for (size_t j = lane(); j < columns; j += kWarp) y[i * columns + j] = row[j] * scale * gain[j];
}

extern "C" __global__ void rms_norm_gradient(size_t rows, size_t columns, const float* x,
                                             const float* gain, const float* inverse,
                                             const float* d_y, float* d_x) {
  const size_t i = row_of_warp();
  if (i >= rows) return;
  const float* row = x + i * columns;
  const float* given = d_y + i * columns;
  const float scale = inverse[i];
  float along = 0;
  for (size_t j = lane(); j < columns; j += kWarp) along += row[j] * gain[j] * given[j];
  along = warp_sum(along) * (scale * scale * scale / (float)columns);
  for (size_t j = lane(); j < columns; j += kWarp) {
    d_x[i * columns + j] += gain[j] * given[j] * scale - row[j] * along;
  }
}

// The logits become the gradient of the rows' mean loss; losses[i] is the row's.
extern "C" __global__ void cross_entropy(size_t rows, size_t classes, const int* targets,
                                         float* logits, double* losses) {
  const size_t i = row_of_warp();
  if (i >= rows) return;
  float* row = logits + i * classes;
  const size_t target = (size_t)targets[i];
  float largest = row[0];
  for (size_t j = lane(); j < classes; j += kWarp) largest = fmaxf(largest, row[j]);
  largest = warp_maximum(largest);
  float sum = 0;
  for (size_t j = lane(); j < classes; j += kWarp) sum += expf(row[j] - largest);
  sum = warp_sum(sum);
  // Every lane has read the target's logit before one of them overwrites it.
  const float chosen = row[target];
  __syncwarp();
  if (lane() == 0) losses[i] = log((double)sum) + ((double)largest - (double)chosen);
  for (size_t j = lane(); j < classes; j += kWarp) {
    row[j] = (expf(row[j] - largest) / sum - (j == target ? 1.0f : 0.0f)) / (float)rows;
  }
}

// ---- Sums over rows

// One block: out[0] = the sum of `count` losses, over `count`.
extern "C" __global__ void mean_loss(size_t count, const double* losses, double* out) {
  __shared__ double sums[kThreads];
  double sum = 0;
  for (size_t i = threadIdx.x; i < count; i += kThreads) sum += losses[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int t = 1; t < kThreads; ++t) sum += sums[t];
  out[0] = sum / (double)count;
}

// Rows blockIdx.x * share to below that of the next: part[blockIdx.x, j] = the sum of d_y x inverse
// over them. 32 columns of blockIdx.y, eight rows at a time.
extern "C" __global__ void norm_gain_parts(size_t rows, size_t columns, size_t share,
                                           const float* x, const float* inverse, const float* d_y,
                                           float* part) {
  constexpr int kRows = kThreads / kWarp;
  __shared__ float sums[kRows][kWarp];
  const size_t j = blockIdx.y * (size_t)kWarp + lane();
  const size_t first = blockIdx.x * share;
  const size_t end = first + share < rows ? first + share : rows;
  float sum = 0;
  if (j < columns) {
    for (size_t i = first + threadIdx.x / kWarp; i < end; i += kRows) {
      sum += d_y[i * columns + j] * x[i * columns + j] * inverse[i];
    }
  }
  sums[threadIdx.x / kWarp][lane()] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || j >= columns) return;
  for (int r = 1; r < kRows; ++r) sum += sums[r][lane()];
  part[blockIdx.x * columns + j] = sum;
}

extern "C" __global__ void embed(size_t rows, size_t columns, const int* tokens, const float* table,
                                 float* y) {
  FOR_EACH(at, rows * columns) {
    y[at] = table[(size_t)tokens[at / columns] * columns + at % columns];
  }
}

// A block of any size for each token of the vocabulary (x) and share of the rows (y):
// part[y, token] = the sum of d_y over the share's rows with that token.
extern "C" __global__ void embed_parts(size_t rows, size_t columns, size_t share, const int* tokens,
                                       const float* d_y, float* part) {
  const int token = (int)blockIdx.x;
  const size_t first = blockIdx.y * share;
  const size_t end = first + share < rows ? first + share : rows;
  for (size_t j = threadIdx.x; j < columns; j += blockDim.x) {
    float sum = 0;
    for (size_t i = first; i < end; ++i) {
      if (tokens[i] == token) sum += d_y[i * columns + j];
    }
    part[(blockIdx.y * (size_t)gridDim.x + (size_t)token) * columns + j] = sum;
  }
}

// ---- Matrix products, where cuBLAS is not

// part[z] = a b over the k from z * share to below that of the next z, m x n row-major: 64 x 64
// elements a block, of rows blockIdx.x and columns blockIdx.y. a's element (row, k) is
// a[row * a_row + k * a_k], b's (k, column) is b[k * b_k + column * b_column].
extern "C" __global__ void __launch_bounds__(kThreads)
    multiply(size_t m, size_t n, size_t k, size_t share, const float* a, size_t a_row, size_t a_k,
             const float* b, size_t b_k, size_t b_column, float* part) {
  constexpr int kTile = 64, kDepth = 16, kSide = 16, kEach = kTile / kSide;
  __shared__ float rows[kDepth][kTile + 1];
  __shared__ float columns[kDepth][kTile + 1];
  const int t = (int)threadIdx.x;
  const size_t row = blockIdx.x * (size_t)kTile, column = blockIdx.y * (size_t)kTile;
  const size_t first = blockIdx.z * share;
  const size_t end = first + share < k ? first + share : k;
  float sums[kEach][kEach] = {};
  for (size_t depth = first; depth < end; depth += kDepth) {
    for (int at = t; at < kTile * kDepth; at += kThreads) {
      // Neighbouring threads read what lies side by side.
      const int ak = a_k == 1 ? at % kDepth : at / kTile;
      const int ar = a_k == 1 ? at / kDepth : at % kTile;
      const int bk = b_k == 1 ? at % kDepth : at / kTile;
      const int bc = b_k == 1 ? at / kDepth : at % kTile;
      rows[ak][ar] =
          depth + ak < end && row + ar < m ? a[(row + ar) * a_row + (depth + ak) * a_k] : 0.0f;
      columns[bk][bc] = depth + bk < end && column + bc < n
                            ? b[(depth + bk) * b_k + (column + bc) * b_column]
                            : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < kDepth; ++i) {
      for (int r = 0; r < kEach; ++r) {
        for (int c = 0; c < kEach; ++c) {
          sums[r][c] += rows[i][t / kSide + kSide * r] * columns[i][t % kSide + kSide * c];
        }
      }
    }
    __syncthreads();
  }
  for (int r = 0; r < kEach; ++r) {
    for (int c = 0; c < kEach; ++c) {
      const size_t i = row + t / kSide + kSide * r, j = column + t % kSide + kSide * c;
      if (i < m && j < n) part[(blockIdx.z * m + i) * n + j] = sums[r][c];
    }
  }
}
