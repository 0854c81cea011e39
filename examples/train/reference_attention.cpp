#include "reference_attention.hpp"

#include <algorithm>
#include <cmath>

namespace train {
namespace {

// In four sums, which the compiler keeps in a vector. `count` is a multiple of four.
double dot(const double* x, const double* y, std::size_t count) {
  double sums[4] = {};
  for (std::size_t i = 0; i < count; i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

}  // namespace

// The keys that a query sees, and their share in its output.
template <typename T>
struct ReferenceAttention<T>::Row {
  std::vector<std::size_t> keys;
  std::vector<double> p;       // softmax
  std::vector<double> weight;  // p after dropout
  double lse = 0;
};

template <typename T>
struct ReferenceAttention<T>::Host {
  std::vector<double> qkv, bias;
  std::vector<std::int32_t> doc;
  std::uint64_t offset;
};

template <typename T>
ReferenceAttention<T>::ReferenceAttention(Memory& memory, Workers& workers,
                                          const AttentionShape& shape, std::uint64_t seed)
    : memory_(memory), workers_(workers), shape_(shape), dropout_(shape.dropout, seed) {}

template <typename T>
typename ReferenceAttention<T>::Host ReferenceAttention<T>::read(
    const AttentionPass<T>& pass) const {
  const std::size_t rows = shape_.batch * shape_.length;
  std::vector<T> qkv(rows * shape_.qkv_columns()), bias(shape_.heads * shape_.distances);
  std::vector<std::int32_t> doc(rows);
  memory_.read(qkv.data(), pass.qkv, qkv.size() * sizeof(T));
  memory_.read(bias.data(), pass.bias, bias.size() * sizeof(T));
  memory_.read(doc.data(), pass.doc, doc.size() * sizeof(std::int32_t));
  return {{qkv.begin(), qkv.end()}, {bias.begin(), bias.end()}, std::move(doc), pass.offset};
}

template <typename T>
void ReferenceAttention<T>::probabilities(const Host& host, std::size_t b, std::size_t h,
                                          std::size_t i, Row& row) const {
  const std::size_t dim = shape_.head_dim, columns = shape_.qkv_columns();
  const std::size_t h_kv = h / (shape_.heads / shape_.kv_heads);
  const std::size_t first = b * shape_.length;
  const double* q = &host.qkv[(first + i) * columns + h * dim];
  row.keys.clear();
  row.p.clear();
  row.weight.clear();
  for (std::size_t j = 0; j <= i; ++j) {
    if (host.doc[first + j] != host.doc[first + i]) continue;
    const double* k = &host.qkv[(first + j) * columns + (shape_.heads + h_kv) * dim];
    row.keys.push_back(j);
    row.p.push_back(dot(q, k, dim) / std::sqrt(static_cast<double>(dim)) +
                    host.bias[h * shape_.distances + std::min(i - j, shape_.distances - 1)]);
  }
  const double largest = *std::max_element(row.p.begin(), row.p.end());
  double sum = 0;
  for (double& p : row.p) sum += p = std::exp(p - largest);
  row.lse = largest + std::log(sum);
  for (std::size_t n = 0; n < row.p.size(); ++n) {
    row.p[n] /= sum;
    const bool drops =
        dropout_.drops(host.offset, static_cast<std::uint32_t>(b * shape_.heads + h),
                       static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(row.keys[n]));
    row.weight.push_back(drops ? 0 : row.p[n] * dropout_.keep_scale());
  }
}

template <typename T>
void ReferenceAttention<T>::forward(const AttentionPass<T>& pass) {
  const std::size_t dim = shape_.head_dim, length = shape_.length;
  const Host host = read(pass);
  std::vector<T> o(shape_.batch * length * shape_.o_columns()),
      lse(shape_.batch * shape_.heads * length);
  workers_.run(shape_.batch * shape_.heads, 1, [&](std::size_t first, std::size_t last) {
    Row row;
    std::vector<double> sums(dim);
    for (std::size_t item = first; item < last; ++item) {
      const std::size_t b = item / shape_.heads, h = item % shape_.heads;
      const std::size_t h_kv = h / (shape_.heads / shape_.kv_heads);
      for (std::size_t i = 0; i < length; ++i) {
        probabilities(host, b, h, i, row);
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::size_t n = 0; n < row.keys.size(); ++n) {
          const double* v = &host.qkv[(b * length + row.keys[n]) * shape_.qkv_columns() +
                                      (shape_.heads + shape_.kv_heads + h_kv) * dim];
          for (std::size_t d = 0; d < dim; ++d) sums[d] += row.weight[n] * v[d];
        }
        for (std::size_t d = 0; d < dim; ++d) {
          o[(b * length + i) * shape_.o_columns() + h * dim + d] = static_cast<T>(sums[d]);
        }
        lse[item * length + i] = static_cast<T>(row.lse);
      }
    }
  });
  memory_.write(pass.o, o.data(), o.size() * sizeof(T));
  memory_.write(pass.lse, lse.data(), lse.size() * sizeof(T));
}

// With W the weights: dV = W' dO and dW = dO V'. The softmax' gradient is p (dp - sum of p dp),
// where dp is dW for what was kept, times the scale, and 0 for what was dropped.
template <typename T>
void ReferenceAttention<T>::backward(const AttentionPass<T>& pass,
                                     const AttentionGradients<T>& gradients) {
  const std::size_t dim = shape_.head_dim, length = shape_.length;
  const std::size_t columns = shape_.qkv_columns(), group = shape_.heads / shape_.kv_heads;
  const Host host = read(pass);
  std::vector<T> arrived(shape_.batch * length * shape_.o_columns());
  memory_.read(arrived.data(), gradients.d_o, arrived.size() * sizeof(T));
  const std::vector<double> d_o(arrived.begin(), arrived.end());
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<double> d_qkv(shape_.batch * length * columns);
  // A table for each batch, so that no two threads add to one element.
  std::vector<double> d_bias(shape_.batch * shape_.heads * shape_.distances);
  workers_.run(shape_.batch * shape_.kv_heads, 1, [&](std::size_t first, std::size_t last) {
    Row row;
    std::vector<double> d_p;
    for (std::size_t item = first; item < last; ++item) {
      const std::size_t b = item / shape_.kv_heads, h_kv = item % shape_.kv_heads;
      const std::size_t k_column = (shape_.heads + h_kv) * dim;
      const std::size_t v_column = k_column + shape_.kv_heads * dim;
      for (std::size_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
        for (std::size_t i = 0; i < length; ++i) {
          probabilities(host, b, h, i, row);
          const std::size_t query = b * length + i;
          const double* given = &d_o[query * shape_.o_columns() + h * dim];
          d_p.assign(row.keys.size(), 0.0);
          double mean = 0;
          for (std::size_t n = 0; n < row.keys.size(); ++n) {
            if (row.weight[n] == 0) continue;
            const std::size_t key = (b * length + row.keys[n]) * columns;
            for (std::size_t d = 0; d < dim; ++d) {
              d_qkv[key + v_column + d] += row.weight[n] * given[d];
            }
            d_p[n] = dot(given, &host.qkv[key + v_column], dim) * dropout_.keep_scale();
            mean += row.p[n] * d_p[n];
          }
          for (std::size_t n = 0; n < row.keys.size(); ++n) {
            const double d_score = row.p[n] * (d_p[n] - mean);
            const std::size_t key = (b * length + row.keys[n]) * columns;
            const std::size_t own = query * columns + h * dim;
            for (std::size_t d = 0; d < dim; ++d) {
              d_qkv[own + d] += d_score * scale * host.qkv[key + k_column + d];
              d_qkv[key + k_column + d] += d_score * scale * host.qkv[own + d];
            }
            const std::size_t distance = std::min(i - row.keys[n], shape_.distances - 1);
            d_bias[(b * shape_.heads + h) * shape_.distances + distance] += d_score;
          }
        }
      }
    }
  });
  const std::vector<T> rounded(d_qkv.begin(), d_qkv.end());
  memory_.write(gradients.d_qkv, rounded.data(), rounded.size() * sizeof(T));
  std::vector<T> table(shape_.heads * shape_.distances);
  for (std::size_t at = 0; at < table.size(); ++at) {
    double sum = 0;
    for (std::size_t b = 0; b < shape_.batch; ++b) sum += d_bias[b * table.size() + at];
    table[at] = static_cast<T>(sum);
  }
  memory_.write(gradients.d_bias, table.data(), table.size() * sizeof(T));
}

template class ReferenceAttention<float>;
template class ReferenceAttention<double>;

}  // namespace train
